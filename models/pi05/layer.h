// The parts of a layer: norms, weights of one tower's layer, rotary positions, attention.
#pragma once

#include <pi05/config.h>

#include <utility>

namespace pi05 {

// RMS norm, computed in float32. Adaptive with a condition: scale and shift come from it, and a
// gate for the residual that follows.
class RmsNormImpl : public torch::nn::Module {
 public:
  RmsNormImpl(int64_t width, double eps, bool adaptive);

  // The normed tensor and the gate; no gate (undefined) where the norm is not adaptive.
  std::pair<Tensor, Tensor> forward(const Tensor& x, const Tensor& condition);

 private:
  double eps_;
  Tensor weight_;                      // zero-centred
  torch::nn::Linear dense_ = nullptr;  // adaptive
};
TORCH_MODULE(RmsNorm);

// Weights of one tower's part of a layer. Attention is shared by the towers, so it is not in here.
struct TowerLayerImpl : torch::nn::Module {
  TowerLayerImpl(const Config& config, int64_t width, int64_t hidden, bool adaptive);

  Tensor mlp(const Tensor& x);

  RmsNorm norm1 = nullptr, norm2 = nullptr;
  torch::nn::Linear query = nullptr, key = nullptr, value = nullptr, output = nullptr;
  torch::nn::Linear gate = nullptr, up = nullptr, down = nullptr;
};
TORCH_MODULE(TowerLayer);

// As in Python. torch::nn::Linear::forward adds the bias afterwards: one rounding more in bfloat16.
Tensor linear(const torch::nn::Linear& weights, const Tensor& x);

// x + y, or x + y * gate.
Tensor gated_residual(const Tensor& x, const Tensor& y, const Tensor& gate);

// x: [batch, tokens, heads, head size]; the two halves of a head are rotated against each other.
Tensor rotary(const Tensor& x, const Tensor& positions, double theta);

// [batch, queries, heads * head size]. A query that may see nothing sees everything alike: no NaN.
Tensor attend(
    const Config& config, const Tensor& mask, const Tensor& q, const Tensor& k, const Tensor& v);

}  // namespace pi05
