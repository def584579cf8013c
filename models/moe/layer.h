// A layer with a mixture of experts for an MLP.
#pragma once

#include <moe/config.h>

#include <transformer/layer.h>

#include <vector>

namespace moe {

// Where rows go.
struct Routes {
  Tensor probabilities;  // float32 [rows, experts]
  Tensor chosen;         // int64 [rows, experts per token]: the likeliest experts
  Tensor weights;        // float32 [rows, experts per token]: their probabilities, summing to 1
};

// Each row of the input goes through the experts that the router chooses for it, and each expert
// sees its rows only: how many, forward learns from the data.
class ExpertsImpl : public torch::nn::Module {
 public:
  explicit ExpertsImpl(const Config& config);

  Routes route(const Tensor& rows);                      // in float32
  Tensor run(const Tensor& rows, const Routes& routes);  // [rows, width]

 private:
  int64_t experts_per_token_;
  torch::nn::Linear router_ = nullptr;
  std::vector<transformer::Mlp> experts_;
};
TORCH_MODULE(Experts);

class LayerImpl : public torch::nn::Module {
 public:
  explicit LayerImpl(const Config& config);

  // Puts its balance loss at the end of `balance`.
  Tensor forward(const Tensor& x, const Tensor& unseen, std::vector<Tensor>& balance);

 private:
  double dropout_;
  transformer::Attention attention_ = nullptr;
  transformer::RmsNorm norm_ = nullptr;
  Experts experts_ = nullptr;
};
TORCH_MODULE(Layer);

// After the Switch Transformer: the share of choices that fell on an expert times its mean
// probability, summed and scaled so that it is 1 where all experts are alike.
Tensor balance_loss(const Routes& routes);

}  // namespace moe
