#include <pi05/layer.h>

#include <cmath>

namespace pi05 {

namespace {

constexpr double kMasked = -2.3819763e38;

torch::nn::Linear unbiased(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

// Head j uses key-value head j * kv_heads / heads.
Tensor repeat_heads(const Config& config, const Tensor& x) {
  const auto repeats = config.heads / config.kv_heads;
  return x.unsqueeze(3)
      .expand({x.size(0), x.size(1), config.kv_heads, repeats, config.head_size})
      .reshape({x.size(0), x.size(1), config.heads, config.head_size});
}

}  // namespace

RmsNormImpl::RmsNormImpl(int64_t width, double eps, bool adaptive) : eps_(eps) {
  if (adaptive) {
    dense_ = register_module("dense", torch::nn::Linear(width, 3 * width));
  } else {
    weight_ = register_parameter("w", torch::zeros({width}));
  }
}

std::pair<Tensor, Tensor> RmsNormImpl::forward(const Tensor& x, const Tensor& condition) {
  const auto variance = x.to(torch::kFloat32).square().mean(-1, /*keepdim=*/true);
  const auto normed = x * torch::rsqrt(variance + eps_);
  if (dense_.is_empty()) {
    return {(normed * (1 + weight_.to(torch::kFloat32))).to(x.scalar_type()), Tensor()};
  }
  const auto parts = linear(dense_, condition).chunk(3, -1);
  const auto adapted = normed * (1 + parts[0].to(torch::kFloat32)) + parts[1].to(torch::kFloat32);
  return {adapted.to(x.scalar_type()), parts[2].to(x.scalar_type())};
}

TowerLayerImpl::TowerLayerImpl(const Config& config, int64_t width, int64_t hidden, bool adaptive) {
  const auto all_heads = config.heads * config.head_size;
  const auto kv_heads = config.kv_heads * config.head_size;
  norm1 = register_module("n1", RmsNorm(width, config.norm_eps, adaptive));
  norm2 = register_module("n2", RmsNorm(width, config.norm_eps, adaptive));
  query = register_module("q", unbiased(width, all_heads));
  key = register_module("k", unbiased(width, kv_heads));
  value = register_module("v", unbiased(width, kv_heads));
  output = register_module("o", unbiased(all_heads, width));
  gate = register_module("gate", unbiased(width, hidden));
  up = register_module("up", unbiased(width, hidden));
  down = register_module("down", unbiased(hidden, width));
}

Tensor TowerLayerImpl::mlp(const Tensor& x) {
  return linear(down, torch::gelu(linear(gate, x), "tanh") * linear(up, x));
}

Tensor linear(const torch::nn::Linear& weights, const Tensor& x) {
  return torch::linear(x, weights->weight, weights->bias);
}

Tensor gated_residual(const Tensor& x, const Tensor& y, const Tensor& gate) {
  return gate.defined() ? x + y * gate : x + y;
}

Tensor rotary(const Tensor& x, const Tensor& positions, double theta) {
  const auto half = x.size(-1) / 2;
  const auto exponents = (2.0 / static_cast<double>(x.size(-1))) *
      torch::arange(half, torch::kFloat32);
  const auto angle =
      (positions.unsqueeze(-1).to(torch::kFloat32) / torch::pow(theta, exponents)).unsqueeze(-2);
  const auto sin = angle.sin(), cos = angle.cos();
  const auto wide = x.to(torch::kFloat32);
  const auto a = wide.slice(-1, 0, half), b = wide.slice(-1, half);
  return torch::cat({a * cos - b * sin, b * cos + a * sin}, -1).to(x.scalar_type());
}

Tensor attend(
    const Config& config, const Tensor& mask, const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto queries = q.transpose(1, 2);
  const auto keys = repeat_heads(config, k).transpose(1, 2);
  const auto values = repeat_heads(config, v).transpose(1, 2);
  const auto allowed = mask.unsqueeze(1);
  Tensor out;
  if (config.attention == Attention::Eager) {
    const auto scale = 1 / std::sqrt(static_cast<double>(config.head_size));
    const auto scores =
        queries.to(torch::kFloat32).matmul(keys.to(torch::kFloat32).transpose(2, 3)) * scale;
    out = torch::where(allowed, scores, kMasked).softmax(-1).to(v.scalar_type()).matmul(values);
  } else {
    out = torch::scaled_dot_product_attention(queries, keys, values, allowed);
  }
  return out.transpose(1, 2).reshape({q.size(0), q.size(1), config.heads * config.head_size});
}

}  // namespace pi05
