#include <moe/model.h>

#include <utility>

namespace moe {

ModelImpl::ModelImpl(Config config) : config_(std::move(config)) {
  ends_ = register_module("ends", transformer::Ends(config_));
  torch::nn::ModuleList layers;
  for (int64_t i = 0; i < config_.layers; ++i) {
    layers_.emplace_back(config_);
    layers->push_back(layers_.back());
  }
  register_module("layers", layers);
  to(config_.dtype);
}

Output ModelImpl::forward(const Tensor& ids) {
  balance_.clear();
  const auto unseen = transformer::causal_mask(ids.size(1) - 1, ids.device());
  std::vector<models::Layer> stack;
  for (const auto& layer : layers_) {
    // `self` keeps the list.
    stack.push_back([this, self = shared_from_this(), layer = layer.ptr(), unseen](
                        const Tensor& x) { return layer->forward(x, unseen, balance_); });
  }
  const auto x = models::run_stack(config_.stacking, stack, ends_->embed(transformer::read(ids)));
  const auto balance = torch::stack(std::exchange(balance_, {})).sum();
  const auto logits = ends_->logits(x);
  const auto ce = transformer::next_token_loss(logits, ids);
  return {ce + balance * config_.balance, ce, balance, logits};
}

}  // namespace moe
