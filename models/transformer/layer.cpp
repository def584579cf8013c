#include <transformer/layer.h>

#include <cmath>
#include <limits>

namespace transformer {

RmsNormImpl::RmsNormImpl(const Config& config) : eps_(config.norm_eps) {
  weight_ = register_parameter("weight", torch::ones({config.width}));
}

Tensor RmsNormImpl::forward(const Tensor& x) {
  const auto wide = x.to(torch::kFloat32);
  const auto scale = torch::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + eps_);
  return (wide * scale).to(x.scalar_type()) * weight_;
}

AttentionImpl::AttentionImpl(const Config& config)
    : heads_(config.heads),
      dropout_(config.dropout) {
  TORCH_CHECK(
      config.width % config.heads == 0,
      "[transformer::Attention] expected a width that ",
      config.heads,
      " heads divide, got ",
      config.width,
      ". Fix: another width, or another number of heads.");
  norm_ = register_module("norm", RmsNorm(config));
  qkv_ = register_module("qkv", unbiased(config.width, 3 * config.width));
  output_ = register_module("output", unbiased(config.width, config.width));
}

Tensor AttentionImpl::forward(const Tensor& x, const Tensor& unseen) {
  auto parts = qkv_->forward(norm_->forward(x)).chunk(3, -1);
  for (auto& part : parts) {
    part = part.view({x.size(0), x.size(1), heads_, -1}).transpose(1, 2);
  }
  const auto scale = 1 / std::sqrt(static_cast<double>(parts[0].size(-1)));
  const auto scores = parts[0].matmul(parts[1].transpose(2, 3)).to(torch::kFloat32) * scale;
  const auto seen = scores.masked_fill(unseen, -std::numeric_limits<double>::infinity());
  const auto weights = torch::dropout(
      seen.softmax(-1).to(x.scalar_type()), dropout_, is_training());
  const auto attended = weights.matmul(parts[2]).transpose(1, 2).flatten(2);
  return x + torch::dropout(output_->forward(attended), dropout_, is_training());
}

MlpImpl::MlpImpl(const Config& config) {
  gate_ = register_module("gate", unbiased(config.width, config.hidden));
  up_ = register_module("up", unbiased(config.width, config.hidden));
  down_ = register_module("down", unbiased(config.hidden, config.width));
}

Tensor MlpImpl::forward(const Tensor& x) {
  return down_->forward(torch::silu(gate_->forward(x)) * up_->forward(x));
}

LayerImpl::LayerImpl(const Config& config) : dropout_(config.dropout) {
  attention_ = register_module("attention", Attention(config));
  norm_ = register_module("norm", RmsNorm(config));
  mlp_ = register_module("mlp", Mlp(config));
}

Tensor LayerImpl::forward(const Tensor& x, const Tensor& unseen) {
  const auto middle = attention_->forward(x, unseen);
  return middle + torch::dropout(mlp_->forward(norm_->forward(middle)), dropout_, is_training());
}

torch::nn::Linear unbiased(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

Tensor causal_mask(int64_t tokens, torch::Device device) {
  return torch::ones({tokens, tokens}, torch::TensorOptions(torch::kBool).device(device)).triu(1);
}

}  // namespace transformer
