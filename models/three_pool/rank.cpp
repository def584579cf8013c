#include <three_pool/rank.h>

namespace three_pool {

using retape::dist::Edge;
using retape::dist::EdgeOptions;
using retape::dist::Group;

Rank::Rank(
    const retape::dist::Case& run_, const retape::dist::GroupFactory& groups, const Config& config_)
    : run(run_),
      placement(groups, run.topology),
      config(config_),
      sizes(sizes_of(run.topology, sites_of(config).size())),
      target(config, run.seed, run.dtype) {}

SiteRange Rank::sites_of_block(int block) const {
  return three_pool::sites_of_block(block, sizes.blocks, target.sites().size());
}

Tensor Rank::batch(const std::string& pool, int step) const {
  return batch_rows(config, run.seed, step, placement.rows(pool), run.dtype);
}

Edge Rank::lower_edge(const std::string& to) const {
  return Edge(to, run.topology, "ci", to, placement.group(edge_name(to)), EdgeOptions{run.wire});
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
    const retape::dist::Case& run, const retape::dist::GroupFactory& groups, const Config& config) {
  if (groups.rank >= run.topology.world_size()) {
    return {};
  }
  const Rank rank(run, groups, config);
  if (rank.placement.has("ci")) {
    return run_ci(rank);
  }
  if (rank.placement.has("ppgd")) {
    return run_ppgd(rank);
  }
  int block = 0;
  while (!rank.placement.has(block_name(block))) {
    ++block;
  }
  return run_block(rank, block);
}

}  // namespace three_pool
