#include <three_pool/rank.h>

namespace three_pool {

using retape::dist::Edge;
using retape::dist::EdgeOptions;
using retape::dist::Group;

Rank::Rank(const retape::dist::Case& run_, const retape::dist::World& world_, const Config& config_)
    : run(run_),
      world(world_),
      config(config_),
      sizes(sizes_of(run.topology, sites_of(config).size())),
      target(config, run.seed, run.dtype) {}

SiteRange Rank::sites_of_block(int block) const {
  return three_pool::sites_of_block(block, sizes.blocks, target.sites().size());
}

retape::dist::RowRange Rank::rows_in(const std::string& pool) const {
  const auto& members = run.topology.pool(pool);
  return members.shards.at(static_cast<size_t>(members.index_of(world.rank())));
}

Tensor Rank::batch(const std::string& pool, int step) const {
  return batch_rows(config, run.seed, step, rows_in(pool), run.dtype);
}

Group Rank::group(const std::string& name, const std::vector<int>& ranks) const {
  return world.group(group_name(name, ranks), ranks);
}

Group Rank::pool(const std::string& name) const {
  return group(name, run.topology.pool(name).ranks);
}

Group Rank::layerwise() const {
  std::vector<int> ranks;
  for (int b = 0; b < sizes.blocks; ++b) {
    const auto& members = run.topology.pool(block_name(b)).ranks;
    ranks.insert(ranks.end(), members.begin(), members.end());
  }
  return group("layerwise", ranks);
}

Group Rank::link(int block) const {
  auto ranks = run.topology.pool("ppgd").ranks;
  ranks.insert(ranks.begin(), run.topology.pool(block_name(block)).leader());
  return group(block_name(block) + "+ppgd", ranks);
}

Edge Rank::lower_edge(const std::string& to) const {
  auto ranks = run.topology.pool("ci").ranks;
  const auto& receivers = run.topology.pool(to).ranks;
  ranks.insert(ranks.end(), receivers.begin(), receivers.end());
  return Edge(to, run.topology, "ci", to, group("ci+" + to, ranks), EdgeOptions{run.wire});
}

void Rank::broadcast(
    const std::string& name, const Group& group, int from, std::vector<Tensor> tensors) const {
  const torch::NoGradGuard no_grad;
  const auto flat = at::flatten_dense_tensors(tensors).to(run.wire.value_or(run.dtype));
  group.broadcast(name, flat, from);
  if (group.index() == from) {
    return;  // keeps what it has, unrounded
  }
  const auto arrived = at::unflatten_dense_tensors(flat, tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].copy_(arrived[i]);
  }
}

retape::dist::Outcome distributed(
    const retape::dist::Case& run, const retape::dist::World& world, const Config& config) {
  const Rank rank(run, world, config);
  for (const auto& pool : run.topology.pools()) {
    if (pool.index_of(world.rank()) >= 0) {
      if (pool.name == "ci") {
        return run_ci(rank);
      }
      return pool.name == "ppgd" ? run_ppgd(rank) : run_block(rank, std::stoi(pool.name.substr(5)));
    }
  }
  return {};
}

}  // namespace three_pool
