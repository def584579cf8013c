#include <three_pool/sources.h>

#include <retape/dist/row_random.h>

#include <algorithm>

namespace three_pool {

namespace {

std::vector<Tensor> first_values(
    const Config& config, uint64_t seed, retape::dist::RowRange rows, at::ScalarType dtype) {
  std::vector<Tensor> values;
  for (const auto& site : sites_of(config)) {
    values.push_back(
        retape::dist::row_uniform(
            seed, "sources/" + site.name, rows, {config.positions, site.components + 1}, dtype));
    values.back().requires_grad_();
  }
  return values;
}

// Of each row of `rows`: how many errors its rank of ppgd has, or the whole batch.
Tensor counts_of(
    const Config& config, retape::dist::RowRange rows, const retape::dist::Topology& topology) {
  const auto counts = at::full({rows.size(), 1, 1}, topology.rows(), at::kDouble);
  if (config.source_count == SourceCount::Shard) {
    for (const auto& shard : topology.pool("ppgd").shards) {
      const auto begin = std::max(shard.begin, rows.begin), end = std::min(shard.end, rows.end);
      if (begin < end) {
        counts.slice(0, begin - rows.begin, end - rows.begin).fill_(shard.size());
      }
    }
  }
  return counts * config.errors_in_a_row();
}

}  // namespace

Sources::Sources(
    const Config& config,
    uint64_t seed,
    retape::dist::RowRange rows,
    at::ScalarType dtype,
    const retape::dist::Topology& topology)
    : values_(first_values(config, seed, rows, dtype)),
      counts_(counts_of(config, rows, topology).to(dtype)),
      adam_(
          values_,
          torch::optim::AdamOptions(config.source_rate)
              .betas(std::make_tuple(0.5, 0.99))
              .eps(1e-8)) {}

void Sources::warm_up(int steps, const std::function<Tensor()>& error) {
  for (int i = 0; i < steps; ++i) {
    ascend(torch::autograd::grad({error()}, values_));
  }
}

void Sources::ascend(const std::vector<Tensor>& gradients) {
  const torch::NoGradGuard no_grad;
  for (size_t s = 0; s < values_.size(); ++s) {
    values_[s].mutable_grad() = gradients[s].div(counts_).neg_();  // Adam goes down
  }
  adam_.step();
  for (auto& value : values_) {
    value.clamp_(0, 1);
    value.mutable_grad() = Tensor();
  }
}

}  // namespace three_pool
