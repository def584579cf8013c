#include <three_pool/sources.h>

#include <retape/dist/row_random.h>

namespace three_pool {

namespace {

std::vector<Tensor> first_values(
    const Config& config, uint64_t seed, retape::dist::RowRange rows, at::ScalarType dtype) {
  std::vector<Tensor> values;
  for (const auto& site : sites_of(config)) {
    values.push_back(retape::dist::row_uniform(
        seed, "sources/" + site.name, rows, {config.positions, site.components + 1}, dtype));
    values.back().requires_grad_();
  }
  return values;
}

}  // namespace

Sources::Sources(const Config& config, uint64_t seed, retape::dist::RowRange rows, at::ScalarType dtype)
    : values_(first_values(config, seed, rows, dtype)),
      adam_(values_, torch::optim::AdamOptions(config.source_rate).betas(std::make_tuple(0.5, 0.99)).eps(1e-8)) {}

void Sources::warm_up(int steps, const std::function<Tensor()>& mean_error) {
  for (int i = 0; i < steps; ++i) {
    ascend(torch::autograd::grad({mean_error()}, values_));
  }
}

void Sources::ascend(const std::vector<Tensor>& gradients) {
  const torch::NoGradGuard no_grad;
  for (size_t s = 0; s < values_.size(); ++s) {
    values_[s].mutable_grad() = gradients[s].neg();  // Adam goes down
  }
  adam_.step();
  for (auto& value : values_) {
    value.clamp_(0, 1);
    value.mutable_grad() = Tensor();
  }
}

}  // namespace three_pool
