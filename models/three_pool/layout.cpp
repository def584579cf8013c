#include <three_pool/layout.h>

#include <retape/error.h>

#include <numeric>

namespace three_pool {

std::string PoolSizes::text() const {
  return std::to_string(ci) + "," + std::to_string(per_block) + "x" + std::to_string(blocks) + "," +
      std::to_string(ppgd);
}

retape::dist::Topology make_topology(PoolSizes sizes, int64_t rows) {
  int next = 0;
  const auto pool = [&next](std::string name, int size) {
    std::vector<int> ranks(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), next);
    next += size;
    return retape::dist::Pool{std::move(name), std::move(ranks), {}};
  };
  std::vector<retape::dist::Pool> pools{pool("ci", sizes.ci)};
  for (int b = 0; b < sizes.blocks; ++b) {
    pools.push_back(pool(block_name(b), sizes.per_block));
  }
  pools.push_back(pool("ppgd", sizes.ppgd));
  const auto& ci = pools.front().ranks;
  const auto& ppgd = pools.back().ranks;
  const auto joined = [](std::vector<int> a, const std::vector<int>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  retape::dist::NamedRanks layerwise{"layerwise", {}};
  std::vector<retape::dist::NamedRanks> groups{{edge_name("ppgd"), joined(ci, ppgd)}};
  for (int b = 0; b < sizes.blocks; ++b) {
    const auto& block = pools[static_cast<size_t>(b) + 1];
    layerwise.ranks = joined(layerwise.ranks, block.ranks);
    groups.push_back({edge_name(block.name), joined(ci, block.ranks)});
    groups.push_back({link_name(b), joined({block.leader()}, ppgd)});
    groups.push_back({leaders_name(b), {block.leader(), pools.back().leader()}});
  }
  groups.push_back(std::move(layerwise));
  return retape::dist::Topology(rows, std::move(pools), std::move(groups));
}

PoolSizes sizes_of(const retape::dist::Topology& topology, size_t sites) {
  PoolSizes sizes;
  sizes.blocks = static_cast<int>(topology.pools().size()) - 2;
  sizes.ci = topology.pool("ci").size();
  sizes.ppgd = topology.pool("ppgd").size();
  if (sizes.blocks < 1 || sizes.blocks > static_cast<int>(sites)) {
    throw retape::UsageError(
        "[three_pool] expected from 1 to " + std::to_string(sites) +
        " blocks, one site each at least, got " + std::to_string(sizes.blocks) +
        ". Fix: make_topology(sizes, rows).");
  }
  sizes.per_block = topology.pool(block_name(0)).size();
  return sizes;
}

std::string block_name(int block) {
  return "block" + std::to_string(block);
}

std::string edge_name(const std::string& to) {
  return "ci+" + to;
}

std::string link_name(int block) {
  return block_name(block) + "+ppgd";
}

std::string leaders_name(int block) {
  return link_name(block) + " leaders";
}

SiteRange sites_of_block(int block, int blocks, size_t sites) {
  const auto shard = retape::dist::even_shards(
      static_cast<int64_t>(sites), blocks)[static_cast<size_t>(block)];
  return {static_cast<size_t>(shard.begin), static_cast<size_t>(shard.end)};
}

}  // namespace three_pool
