// The CI function: from the activations before every site to how important each component is.
//
// Its outputs are bounded twice. The lower bound goes into masks, the upper one is made small:
//
//   lower   clamp(x, 0, 1). Backward passes the gradient between 0 and 1; below 0 a leak of it, and
//   only
//           where it asks for more (is negative); nothing elsewhere
//   upper   clamp(x, 0, 1), and a leak above 1
//
// The backward of `lower` looks at the sign of its gradient, so it is not linear: gradients that
// come from two places are added before they enter it, or the result is another one.
#pragma once

#include <three_pool/target.h>

namespace three_pool {

inline constexpr double kLeak = 0.01;

Tensor lower(const Tensor& x);
Tensor upper(const Tensor& x);

class CiFunction {
 public:
  CiFunction(const Config& config, uint64_t seed, at::ScalarType dtype);

  // [rows, positions, sum of in] to [rows, positions, sum of components].
  Tensor forward(const Tensor& activations) const;

  Named named() const;  // "theta.hidden.weight" and so on

 private:
  Tensor hidden_weight_, hidden_bias_, out_weight_, out_bias_;
};

}  // namespace three_pool
