// The parts of a layer, and the layer: attention, then an MLP, each behind a norm and beside the
// stream.
#pragma once

#include <transformer/config.h>

namespace transformer {

// RMS norm, computed in float32.
class RmsNormImpl : public torch::nn::Module {
 public:
  explicit RmsNormImpl(const Config& config);
  Tensor forward(const Tensor& x);

 private:
  double eps_;
  Tensor weight_;
};
TORCH_MODULE(RmsNorm);

// Written out: scores, mask, softmax in float32. Takes the stream [batch, tokens, width] and gives
// it back with what was attended to: the norm before and the sum after are in here.
class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const Config& config);

  // unseen: bool [tokens, tokens], true where the query (row) may not look.
  Tensor forward(const Tensor& x, const Tensor& unseen);

 private:
  int64_t heads_;
  double dropout_;
  RmsNorm norm_ = nullptr;
  torch::nn::Linear qkv_ = nullptr, output_ = nullptr;
};
TORCH_MODULE(Attention);

// SwiGLU.
class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const Config& config);
  Tensor forward(const Tensor& x);

 private:
  torch::nn::Linear gate_ = nullptr, up_ = nullptr, down_ = nullptr;
};
TORCH_MODULE(Mlp);

class LayerImpl : public torch::nn::Module {
 public:
  explicit LayerImpl(const Config& config);
  Tensor forward(const Tensor& x, const Tensor& unseen);

 private:
  double dropout_;
  Attention attention_ = nullptr;
  RmsNorm norm_ = nullptr;
  Mlp mlp_ = nullptr;
};
TORCH_MODULE(Layer);

torch::nn::Linear unbiased(int64_t in, int64_t out);

// No token sees those after it.
Tensor causal_mask(int64_t tokens, torch::Device device);

}  // namespace transformer
