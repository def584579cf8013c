#include "dist/gradcheck/variants.h"

#include "dist/gradcheck/sizes.h"

#include <algorithm>
#include <functional>

namespace retape::dist::detail {

namespace {

bool can_have_empty_shard(const Pool& pool, int64_t rows) {
  return pool.size() > 1 && rows >= pool.size() - 1;
}

bool has_pool_of(const Topology& topology, const std::vector<std::string>& names) {
  const auto& pools = topology.pools();
  return std::any_of(pools.begin(), pools.end(), [&](const Pool& pool) {
    return can_have_empty_shard(pool, topology.rows()) &&
        std::find(names.begin(), names.end(), pool.name) != names.end();
  });
}

struct VariantKind {
  std::string suffix;
  bool empty;
  // Pools that no topology has in this way.
  std::function<std::vector<std::string>(const std::vector<NamedTopology>&)> left;
  std::function<bool(const Topology&, const std::vector<std::string>& left)> can_be;
  std::function<std::optional<Topology>(const Topology&)> make;
};

// Variants of those that were given, until every pool that can be so is so in one.
void add_variants(
    const std::vector<NamedTopology>& given, const VariantKind& kind, Variants& variants) {
  auto bases = given;
  while (true) {
    const auto left = kind.left(variants.topologies);
    std::erase_if(
        bases, [&](const NamedTopology& base) { return !kind.can_be(base.topology, left); });
    const auto* const base = most_different(bases);
    if (!base) {
      return;
    }
    const auto name = base->name + kind.suffix;
    variants.made_from[name] = {base->name, kind.empty};
    variants.topologies.push_back({name, *kind.make(base->topology)});
  }
}

}  // namespace

bool has_empty_shard(const Pool& pool) {
  return std::any_of(
      pool.shards.begin(), pool.shards.end(), [](const RowRange& shard) { return shard.empty(); });
}

bool has_empty_shard(const Topology& topology) {
  const auto& pools = topology.pools();
  return std::any_of(
      pools.begin(), pools.end(), [](const Pool& pool) { return has_empty_shard(pool); });
}

std::vector<std::string> never_empty(const std::vector<NamedTopology>& topologies) {
  std::vector<std::string> could, have;
  for (const auto& [name, topology] : topologies) {
    for (const auto& pool : topology.pools()) {
      auto& names = has_empty_shard(pool) ? have : could;
      const bool known = std::find(names.begin(), names.end(), pool.name) != names.end();
      if (!known && can_have_empty_shard(pool, topology.rows())) {
        names.push_back(pool.name);
      }
    }
  }
  std::erase_if(could, [&](const std::string& name) {
    return std::find(have.begin(), have.end(), name) != have.end();
  });
  return could;
}

std::optional<Topology> with_empty_shards(const Topology& topology) {
  auto pools = topology.pools();
  bool changed = false;
  bool last = true;
  for (auto& pool : pools) {
    if (!can_have_empty_shard(pool, topology.rows()) || has_empty_shard(pool)) {
      continue;
    }
    pool.shards = even_shards(topology.rows(), pool.size() - 1);
    const auto end = last ? topology.rows() : 0;
    pool.shards.insert(last ? pool.shards.end() : pool.shards.begin(), RowRange{end, end});
    last = !last;  // so that the leader of some pool has none
    changed = true;
  }
  if (!changed) {
    return std::nullopt;
  }
  return Topology(topology.rows(), std::move(pools), topology.groups());
}

Variants with_variants(const GradCheckOptions& options) {
  Variants variants{options.topologies, {}};
  if (!options.ragged) {
    return variants;
  }
  const auto can_be_ragged = [](const Topology& topology, const std::vector<std::string>& left) {
    return can_be_uneven(topology, left);
  };
  add_variants(
      options.topologies, {", ragged", false, never_uneven, can_be_ragged, ragged}, variants);
  if (options.empty) {
    add_variants(
        options.topologies,
        {", empty", true, never_empty, has_pool_of, with_empty_shards},
        variants);
  }
  return variants;
}

}  // namespace retape::dist::detail
