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
  return retape::dist::Topology(rows, std::move(pools));
}

PoolSizes sizes_of(const retape::dist::Topology& topology, size_t sites) {
  PoolSizes sizes;
  sizes.blocks = static_cast<int>(topology.pools().size()) - 2;
  sizes.ci = topology.pool("ci").size();
  sizes.ppgd = topology.pool("ppgd").size();
  if (sizes.blocks < 1 || sizes.blocks > static_cast<int>(sites)) {
    throw retape::UsageError(
        "[three_pool] expected from 1 to " + std::to_string(sites) + " blocks, one site each at least, got " +
        std::to_string(sizes.blocks) + ". Fix: make_topology(sizes, rows).");
  }
  sizes.per_block = topology.pool(block_name(0)).size();
  return sizes;
}

std::string group_name(const std::string& name, const std::vector<int>& ranks) {
  std::string text = name;
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? " " : ",") + std::to_string(ranks[i]);
  }
  return text;
}

std::string block_name(int block) {
  return "block" + std::to_string(block);
}

SiteRange sites_of_block(int block, int blocks, size_t sites) {
  const auto shard = retape::dist::even_shards(static_cast<int64_t>(sites), blocks)[static_cast<size_t>(block)];
  return {static_cast<size_t>(shard.begin), static_cast<size_t>(shard.end)};
}

}  // namespace three_pool
