#include <three_pool/ci_function.h>

#include <three_pool/row_normal.h>
#include <three_pool/row_product.h>

#include <cmath>

namespace three_pool {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Lower : torch::autograd::Function<Lower> {
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x.clamp(0, 1);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto x = context->get_saved_variables()[0];
    const auto& gradient = gradients[0];
    const auto nothing = at::zeros_like(gradient);
    const auto below = at::where((x <= 0).logical_and(gradient < 0), gradient * kLeak, nothing);
    return {at::where((x > 0).logical_and(x <= 1), gradient, below)};
  }
};

}  // namespace

Tensor lower(const Tensor& x) {
  return Lower::apply(x);
}

Tensor upper(const Tensor& x) {
  return at::where(x > 1, 1 + kLeak * (x - 1), x.clamp(0, 1));
}

CiFunction::CiFunction(const Config& config, uint64_t seed, at::ScalarType dtype) {
  int64_t in = 0, out = 0;
  for (const auto& site : sites_of(config)) {
    in += site.in;
    out += site.components;
  }
  const auto hidden = config.ci_hidden;
  const auto draw = [&](const std::string& name, int64_t rows, at::IntArrayRef sizes) {
    return row_normal(seed, "theta/" + name, {0, rows}, sizes, dtype);
  };
  hidden_weight_ = draw("hidden.weight", hidden, {in}) / std::sqrt(static_cast<double>(in));
  hidden_bias_ = draw("hidden.bias", hidden, {});
  out_weight_ = draw("out.weight", out, {hidden}) / std::sqrt(static_cast<double>(hidden));
  // Around the middle, so that values fall below 0, between, and above 1.
  out_bias_ = draw("out.bias", out, {}) * 0.3 + 0.5;
  for (const auto& [name, parameter] : named()) {
    parameter.requires_grad_();
  }
}

Tensor CiFunction::forward(const Tensor& activations) const {
  const auto hidden = at::tanh(row_product(activations, hidden_weight_.t()) + hidden_bias_);
  return row_product(hidden, out_weight_.t()) + out_bias_;
}

Named CiFunction::named() const {
  return {
      {"theta.hidden.weight", hidden_weight_},
      {"theta.hidden.bias", hidden_bias_},
      {"theta.out.weight", out_weight_},
      {"theta.out.bias", out_bias_}};
}

}  // namespace three_pool
