// A transformer with a mixture of experts in each layer. What `transformer` has is used from there.
//
//   moe::Config config;
//   torch::manual_seed(0);
//   moe::Model model(config);
//   model->forward(transformer::closed_form_ids(config)).loss.backward();
//
// A layer's balance loss does not travel with the stream: the layer puts it on a list of the
// model's, from within, and forward adds the list up. Nothing about the list is an argument or a
// result that a method could see. So a layer that is called again in backward puts another one
// there, for nobody; and one that is first called without a graph, as reentrant checkpoints do,
// puts one there that has no gradient. Each forward begins with an empty list: what a second call
// left does not reach the next step.
#pragma once

#include <moe/layer.h>

#include <transformer/ends.h>

namespace moe {

struct Output {
  Tensor loss;  // of the two below, the second weighed as the config says
  Tensor ce;
  Tensor balance;  // summed over layers
  Tensor logits;   // [batch, tokens, vocabulary]
};

class ModelImpl : public torch::nn::Module {
 public:
  explicit ModelImpl(Config config);

  Output forward(const Tensor& ids);  // [batch, tokens + 1]

  const Config& config() const { return config_; }
  void set_stacking(models::Stacking stacking) { config_.stacking = std::move(stacking); }

  // Empty after forward, unless a layer has been called since.
  const std::vector<Tensor>& balance_losses() const { return balance_; }

 private:
  Config config_;
  transformer::Ends ends_ = nullptr;
  std::vector<Layer> layers_;
  std::vector<Tensor> balance_;  // of the forward that is running, by layer
};
TORCH_MODULE(Model);

}  // namespace moe
