#include "dist/gradcheck/sizes.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

namespace retape::dist::detail {

namespace {

// "block12" -> "block"
std::string stem(const std::string& name) {
  auto end = name.size();
  while (end > 0 && std::isdigit(static_cast<unsigned char>(name[end - 1]))) {
    --end;
  }
  return end == 0 ? name : name.substr(0, end);
}

bool same_ranks(const Pool& a, const Pool& b) {
  return std::set<int>(a.ranks.begin(), a.ranks.end()) ==
      std::set<int>(b.ranks.begin(), b.ranks.end());
}

bool all_ones(const Topology& topology) {
  const auto& pools = topology.pools();
  return std::all_of(pools.begin(), pools.end(), [](const Pool& pool) { return pool.size() == 1; });
}

size_t different_sizes(const Topology& topology) {
  std::set<int> values;
  for (const auto& size : sizes_of(topology)) {
    values.insert(size.value);
  }
  return values.size();
}

bool all_different(const Topology& topology) {
  return different_sizes(topology) == sizes_of(topology).size();
}

bool some_have_all_different(const std::vector<NamedTopology>& topologies) {
  return std::any_of(topologies.begin(), topologies.end(), [](const NamedTopology& named) {
    return !all_ones(named.topology) && all_different(named.topology);
  });
}

bool can_be_uneven(const Pool& pool, int64_t rows) {
  return pool.size() > 1 && rows > pool.size();
}

// A pool that is part of another is never the larger one.
bool have_common_rank(const Topology& topology, const Size& a, const Size& b) {
  for (const auto& one : a.pools) {
    for (const auto& other : b.pools) {
      const auto& ranks = topology.pool(one).ranks;
      const auto is_in_other = [&](int rank) { return topology.pool(other).index_of(rank) >= 0; };
      if (std::any_of(ranks.begin(), ranks.end(), is_in_other)) {
        return true;
      }
    }
  }
  return false;
}

// How two sizes compare, in all topologies that have both.
struct Pair {
  bool less = false, equal = false, greater = false;
  bool common = false;  // ranks
};

std::map<std::pair<std::string, std::string>, Pair> pairs(
    const std::vector<NamedTopology>& topologies) {
  std::map<std::pair<std::string, std::string>, Pair> all;
  for (const auto& named : topologies) {
    if (all_ones(named.topology)) {
      continue;
    }
    const auto sizes = sizes_of(named.topology);
    for (size_t i = 0; i < sizes.size(); ++i) {
      for (size_t j = i + 1; j < sizes.size(); ++j) {
        auto& pair = all[{sizes[i].name, sizes[j].name}];
        pair.less |= sizes[i].value < sizes[j].value;
        pair.equal |= sizes[i].value == sizes[j].value;
        pair.greater |= sizes[i].value > sizes[j].value;
        pair.common |= have_common_rank(named.topology, sizes[i], sizes[j]);
      }
    }
  }
  return all;
}

// "n_ci > n_ppgd, n_ci > n_block0": sizes that are never the other way round.
std::string always_larger(const std::vector<NamedTopology>& topologies, bool common) {
  std::string text;
  for (const auto& [names, pair] : pairs(topologies)) {
    if (pair.less != pair.greater && pair.common == common) {
      const auto& [more, fewer] = pair.greater ? names : std::pair{names.second, names.first};
      text += (text.empty() ? "" : ", ") + more + " > " + fewer;
    }
  }
  return text;
}

bool some_are_ones(const std::vector<NamedTopology>& topologies) {
  return std::any_of(topologies.begin(), topologies.end(), [](const auto& named) {
    return all_ones(named.topology);
  });
}

// As with data parallelism over all ranks, whose step has no group for one of them.
bool one_pool_has_all(const Topology& topology) {
  const auto& pools = topology.pools();
  return std::any_of(pools.begin(), pools.end(), [&](const Pool& pool) {
    return pool.size() == all_ranks(topology);
  });
}

bool one_pool_has_all(const std::vector<NamedTopology>& topologies) {
  return std::all_of(topologies.begin(), topologies.end(), [](const auto& named) {
    return one_pool_has_all(named.topology);
  });
}

constexpr const char* kOneWay = "rows go from pool to pool in one direction of fan only: always ";
constexpr const char* kNoOnes =
    "no topology has one rank in every pool: what is wrong there already looks like a wrong sum.";

}  // namespace

int all_ranks(const Topology& topology) {
  std::set<int> ranks;
  for (const auto& pool : topology.pools()) {
    ranks.insert(pool.ranks.begin(), pool.ranks.end());
  }
  return static_cast<int>(ranks.size());
}

std::vector<RowRange> uneven_shards(int64_t rows, int shards, bool growing) {
  // One row each; of the others the i-th gets i parts, the last one what is left over.
  const int64_t others = rows - shards;
  const int64_t parts = static_cast<int64_t>(shards) * (shards - 1) / 2;
  std::vector<int64_t> counts;
  int64_t left = rows;
  for (int i = 0; i < shards; ++i) {
    counts.push_back(i + 1 == shards ? left : 1 + others * i / parts);
    left -= counts.back();
  }
  if (!growing) {
    std::reverse(counts.begin(), counts.end());
  }
  std::vector<RowRange> cut;
  int64_t begin = 0;
  for (const auto count : counts) {
    cut.push_back({begin, begin + count});
    begin += count;
  }
  return cut;
}

std::vector<Size> sizes_of(const Topology& topology) {
  std::vector<Size> sizes;
  for (const auto& pool : topology.pools()) {
    const auto like = std::find_if(sizes.begin(), sizes.end(), [&](const Size& size) {
      const auto& first = topology.pool(size.pools.front());
      return first.size() == pool.size() &&
          (stem(first.name) == stem(pool.name) || same_ranks(first, pool));
    });
    if (like == sizes.end()) {
      sizes.push_back({"n_" + pool.name, {pool.name}, pool.size()});
    } else {
      like->pools.push_back(pool.name);
    }
  }
  return sizes;
}

std::vector<std::string> vacuous_topologies(const std::vector<NamedTopology>& topologies) {
  const auto ones = [](const NamedTopology& named) { return all_ones(named.topology); };
  if (std::all_of(topologies.begin(), topologies.end(), ones)) {
    return {
        "every pool of every topology has one rank, and no factor is wrong there. Fix: a topology "
        "of "
        "several ranks."};
  }
  std::vector<std::string> reasons;
  for (const auto& [names, pair] : pairs(topologies)) {
    if (pair.equal && !pair.less && !pair.greater) {
      reasons.push_back(
          names.first + " and " + names.second +
          " are equal in every topology: one in place of the other would not be seen. Fix: a "
          "topology in which "
          "all sizes are different, like 6, 3, 2.");
    }
  }
  // Factors of three sizes at once hide where any two of them are equal.
  if (reasons.empty() && !some_have_all_different(topologies)) {
    reasons.push_back(
        "no topology has all sizes different: a factor made of several would not be seen in each. "
        "Fix: one that has, "
        "like 6, 3, 2.");
  }
  if (const auto larger = always_larger(topologies, /*common=*/false); !larger.empty()) {
    reasons.push_back(
        kOneWay + larger +
        ". Fix: a topology with sizes the other way round, like 2, 4, 8 for 6, 3, 2.");
  }
  if (!some_are_ones(topologies) && !one_pool_has_all(topologies)) {
    reasons.push_back(kNoOnes + std::string(" Fix: a topology with one."));
  }
  return reasons;
}

std::vector<std::string> notes_on(const std::vector<NamedTopology>& topologies) {
  std::vector<std::string> notes;
  if (const auto larger = always_larger(topologies, /*common=*/true); !larger.empty()) {
    notes.push_back(kOneWay + larger + ".");
  }
  std::string even;
  for (const auto& pool : never_uneven(topologies)) {
    even += (even.empty() ? "" : ", ") + pool;
  }
  if (!even.empty()) {
    notes.push_back(
        "shards of " + even +
        " are even in every topology: a mean of each rank's mean would not be seen.");
  }
  if (!some_are_ones(topologies) && one_pool_has_all(topologies)) {
    notes.push_back(kNoOnes);
  }
  return notes;
}

bool is_even(const Topology& topology) {
  for (const auto& pool : topology.pools()) {
    for (const auto& shard : pool.shards) {
      if (shard.size() != pool.shards.front().size()) {
        return false;
      }
    }
  }
  return true;
}

bool is_uneven(const Pool& pool) {
  const auto [fewest, most] = std::minmax_element(
      pool.shards.begin(), pool.shards.end(), [](const RowRange& a, const RowRange& b) {
        return a.size() < b.size();
      });
  return most->size() >= std::min(2 * fewest->size(), fewest->size() + 2);
}

std::vector<std::string> never_uneven(const std::vector<NamedTopology>& topologies) {
  std::vector<std::string> could;
  std::set<std::string> are;
  for (const auto& [name, topology] : topologies) {
    for (const auto& pool : topology.pools()) {
      if (is_uneven(pool)) {
        are.insert(pool.name);
      } else if (
          can_be_uneven(pool, topology.rows()) &&
          std::find(could.begin(), could.end(), pool.name) == could.end()) {
        could.push_back(pool.name);
      }
    }
  }
  could.erase(
      std::remove_if(
          could.begin(), could.end(), [&](const std::string& name) { return are.contains(name); }),
      could.end());
  return could;
}

bool can_be_uneven(const Topology& topology, const std::vector<std::string>& names) {
  const auto& pools = topology.pools();
  return std::any_of(pools.begin(), pools.end(), [&](const Pool& pool) {
    return can_be_uneven(pool, topology.rows()) &&
        std::find(names.begin(), names.end(), pool.name) != names.end();
  });
}

std::optional<Topology> ragged(const Topology& topology) {
  auto pools = topology.pools();
  bool changed = false;
  bool growing = true;
  for (auto& pool : pools) {
    if (can_be_uneven(pool, topology.rows()) && !is_uneven(pool)) {
      // Pools in turns, so that a rank's overlaps with another pool are uneven too.
      pool.shards = uneven_shards(topology.rows(), pool.size(), growing);
      growing = !growing;
      changed = true;
    }
  }
  if (!changed) {
    return std::nullopt;
  }
  return Topology(topology.rows(), std::move(pools), topology.groups());
}

const NamedTopology* most_different(const std::vector<NamedTopology>& topologies) {
  const NamedTopology* best = nullptr;
  for (const auto& named : topologies) {
    if (all_ones(named.topology)) {
      continue;
    }
    const auto score = [](const NamedTopology& t) {
      // Ranks in a sum are what mutations multiply; an even cut is what predictions are for.
      return std::tuple(
          all_different(t.topology),
          different_sizes(t.topology),
          is_even(t.topology),
          -all_ranks(t.topology));
    };
    if (!best || score(named) > score(*best)) {
      best = &named;
    }
  }
  return best;
}

}  // namespace retape::dist::detail
