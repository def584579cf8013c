#include <moe/layer.h>

namespace moe {

ExpertsImpl::ExpertsImpl(const Config& config) : experts_per_token_(config.experts_per_token) {
  TORCH_CHECK(
      0 < config.experts_per_token && config.experts_per_token <= config.experts,
      "[moe::Experts] expected from 1 to ",
      config.experts,
      " experts per token, got ",
      config.experts_per_token,
      ". Fix: more experts, or fewer of them per token.");
  router_ = register_module("router", transformer::unbiased(config.width, config.experts));
  torch::nn::ModuleList experts;
  for (int64_t i = 0; i < config.experts; ++i) {
    experts_.emplace_back(config);
    experts->push_back(experts_.back());
  }
  register_module("experts", experts);
}

Routes ExpertsImpl::route(const Tensor& rows) {
  const auto logits = torch::linear(rows.to(torch::kFloat32), router_->weight.to(torch::kFloat32));
  const auto probabilities = logits.softmax(-1);
  const auto [likeliest, chosen] = probabilities.topk(experts_per_token_, -1);
  return {probabilities, chosen, likeliest / likeliest.sum(-1, /*keepdim=*/true)};
}

Tensor ExpertsImpl::run(const Tensor& rows, const Routes& routes) {
  auto out = torch::zeros_like(rows);
  for (size_t i = 0; i < experts_.size(); ++i) {
    // An expert that no row has chosen runs on none, and its gradient is zero, not undefined.
    const auto choices = (routes.chosen == static_cast<int64_t>(i)).nonzero();
    const auto row = choices.select(1, 0), place = choices.select(1, 1);
    const auto made = experts_[i]->forward(rows.index_select(0, row));
    const auto weight = routes.weights.index({row, place}).unsqueeze(1).to(rows.scalar_type());
    out.index_add_(0, row, made * weight);
  }
  return out;
}

LayerImpl::LayerImpl(const Config& config) : dropout_(config.dropout) {
  attention_ = register_module("attention", transformer::Attention(config));
  norm_ = register_module("norm", transformer::RmsNorm(config));
  experts_ = register_module("mlp", Experts(config));
}

Tensor LayerImpl::forward(const Tensor& x, const Tensor& unseen, std::vector<Tensor>& balance) {
  const auto middle = attention_->forward(x, unseen);
  const auto rows = norm_->forward(middle).flatten(0, 1);
  const auto routes = experts_->route(rows);
  balance.push_back(balance_loss(routes));
  const auto mixed = experts_->run(rows, routes).view_as(middle);
  return middle + torch::dropout(mixed, dropout_, is_training());
}

Tensor balance_loss(const Routes& routes) {
  const auto experts = routes.probabilities.size(1);
  const auto choices = routes.chosen.flatten().bincount({}, experts).to(torch::kFloat32);
  const auto shares = choices / static_cast<double>(routes.chosen.numel());
  return (shares * routes.probabilities.mean(0)).sum() * static_cast<double>(experts);
}

}  // namespace moe
