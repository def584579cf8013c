#include <retape/dist/topology.h>

#include <retape/error.h>

#include <algorithm>
#include <set>
#include <sstream>

namespace retape::dist {

RowRange overlap(RowRange a, RowRange b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

std::vector<RowRange> even_shards(int64_t rows, int64_t shards) {
  if (shards < 1 || rows < shards) {
    throw UsageError(
        "[even_shards] " + std::to_string(rows) + " rows cannot be cut into " +
        std::to_string(shards) + " shards of at least one. Fix: more rows, or fewer ranks.");
  }
  std::vector<RowRange> cut;
  int64_t begin = 0;
  for (int64_t i = 0; i < shards; ++i) {
    const int64_t end = begin + rows / shards + (i < rows % shards ? 1 : 0);
    cut.push_back({begin, end});
    begin = end;
  }
  return cut;
}

int Pool::index_of(int rank) const {
  const auto it = std::find(ranks.begin(), ranks.end(), rank);
  return it == ranks.end() ? -1 : static_cast<int>(it - ranks.begin());
}

namespace {

[[noreturn]] void refuse(const Pool& pool, const std::string& what) {
  throw UsageError("[Topology] pool \"" + pool.name + "\": " + what);
}
[[noreturn]] void refuse(const NamedRanks& group, const std::string& what) {
  throw UsageError("[Topology] group \"" + group.name + "\": " + what);
}

// Of a pool or a group.
template <typename Named>
void check_name_and_ranks(const Named& named, std::set<std::string>& names) {
  if (!names.insert(named.name).second) {
    refuse(named, "there are two of this name.");
  }
  if (named.ranks.empty()) {
    refuse(named, "no ranks.");
  }
  std::set<int> seen;
  for (const int rank : named.ranks) {
    if (rank < 0 || !seen.insert(rank).second) {
      refuse(
          named,
          "rank " + std::to_string(rank) + (rank < 0 ? " is below zero." : " is there twice."));
    }
  }
}

// Every row once: sorted, each shard begins where the last one ended.
void check_shards(const Pool& pool, int64_t rows) {
  if (pool.shards.size() != pool.ranks.size()) {
    refuse(
        pool,
        std::to_string(pool.shards.size()) + " shards for " + std::to_string(pool.ranks.size()) +
            " ranks. Fix: one for each, or none to have them cut evenly.");
  }
  auto sorted = pool.shards;
  std::erase_if(sorted, [](const RowRange& shard) { return shard.begin == shard.end; });
  std::sort(sorted.begin(), sorted.end(), [](RowRange a, RowRange b) { return a.begin < b.begin; });
  int64_t next = 0;
  for (const auto& shard : sorted) {
    if (shard.empty()) {
      refuse(pool, "a shard ends at row " + std::to_string(shard.end) + ", before it begins.");
    }
    if (shard.begin != next) {
      refuse(
          pool,
          "row " + std::to_string(std::min(next, shard.begin)) +
              (shard.begin > next ? " is in no shard." : " is in two shards."));
    }
    next = shard.end;
  }
  if (next != rows) {
    refuse(pool, "shards end at row " + std::to_string(next) + " of " + std::to_string(rows) + ".");
  }
}

}  // namespace

Topology::Topology(int64_t rows, std::vector<Pool> pools, std::vector<NamedRanks> groups)
    : rows_(rows),
      pools_(std::move(pools)),
      groups_(std::move(groups)) {
  if (pools_.empty()) {
    throw UsageError("[Topology] no pools.");
  }
  if (rows < 1) {
    throw UsageError("[Topology] " + std::to_string(rows) + " rows. Fix: at least one.");
  }
  std::set<std::string> names;
  for (auto& pool : pools_) {
    check_name_and_ranks(pool, names);
    if (pool.shards.empty()) {
      pool.shards = even_shards(rows, pool.size());
    }
    check_shards(pool, rows);
  }
  const auto known = all_ranks();
  for (const auto& group : groups_) {
    check_name_and_ranks(group, names);
    for (const int rank : group.ranks) {
      if (!std::binary_search(known.begin(), known.end(), rank)) {
        refuse(group, "rank " + std::to_string(rank) + " is in no pool.");
      }
    }
  }
}

std::vector<int> Topology::all_ranks() const {
  std::set<int> ranks;
  for (const auto& pool : pools_) {
    ranks.insert(pool.ranks.begin(), pool.ranks.end());
  }
  return {ranks.begin(), ranks.end()};
}

int Topology::world_size() const {
  return all_ranks().back() + 1;
}

const std::vector<int>& Topology::ranks_of(const std::string& name) const {
  for (const auto& group : groups_) {
    if (group.name == name) {
      return group.ranks;
    }
  }
  return pool(name).ranks;
}

const Pool& Topology::pool(const std::string& name) const {
  std::string known;
  for (const auto& pool : pools_) {
    if (pool.name == name) {
      return pool;
    }
    known += (known.empty() ? "\"" : ", \"") + pool.name + "\"";
  }
  throw UsageError("[Topology] no pool \"" + name + "\". There is: " + known + ".");
}

RowRange Topology::overlap(const std::string& a, int i, const std::string& b, int j) const {
  const auto shard = [&](const std::string& name, int index) {
    const auto& of = pool(name);
    if (index < 0 || index >= of.size()) {
      refuse(of, "no shard " + std::to_string(index) + " of " + std::to_string(of.size()) + ".");
    }
    return of.shards[index];
  };
  return dist::overlap(shard(a, i), shard(b, j));
}

std::string Topology::text() const {
  std::ostringstream out;
  out << rows_ << " rows";
  for (const auto& pool : pools_) {
    out << "; " << pool.name << ":";
    for (int i = 0; i < pool.size(); ++i) {
      out << " " << pool.ranks[i] << "[" << pool.shards[i].begin << "," << pool.shards[i].end
          << ")";
    }
  }
  for (const auto& group : groups_) {
    out << "; " << group.name << ":";
    for (const int rank : group.ranks) {
      out << " " << rank;
    }
  }
  return out.str();
}

}  // namespace retape::dist
