#include <transformer/model.h>

namespace transformer {

ModelImpl::ModelImpl(Config config) : config_(std::move(config)) {
  ends_ = register_module("ends", Ends(config_));
  torch::nn::ModuleList layers;
  for (int64_t i = 0; i < config_.layers; ++i) {
    layers_.emplace_back(config_);
    layers->push_back(layers_.back());
  }
  register_module("layers", layers);
  to(config_.dtype);
}

Output ModelImpl::forward(const Tensor& ids) {
  const auto unseen = causal_mask(ids.size(1) - 1, ids.device());
  std::vector<models::Layer> stack;
  for (const auto& layer : layers_) {
    stack.push_back(
        [layer = layer.ptr(), unseen](const Tensor& x) { return layer->forward(x, unseen); });
  }
  const auto x = models::run_stack(config_.stacking, stack, ends_->embed(read(ids)));
  const auto logits = ends_->logits(x);
  return {next_token_loss(logits, ids), logits};
}

}  // namespace transformer
