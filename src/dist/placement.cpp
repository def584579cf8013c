#include <retape/dist/placement.h>

#include <algorithm>

namespace retape::dist {

Placement::Placement(GroupFactory groups, Topology topology)
    : groups_(std::move(groups)),
      topology_(std::move(topology)) {
  const auto ranks = topology_.all_ranks();
  if (std::find(ranks.begin(), ranks.end(), groups_.rank) == ranks.end()) {
    throw UsageError(
        "[Placement] rank " + std::to_string(groups_.rank) +
        " is in no pool. Fix: only ranks of the topology make it.");
  }
  groups_.make(group_name("topology", ranks), ranks).agree(topology_);
}

bool Placement::has(const std::string& name) const {
  const auto& ranks = topology_.ranks_of(name);
  return std::find(ranks.begin(), ranks.end(), groups_.rank) != ranks.end();
}

int Placement::index(const std::string& pool) const {
  const int index = topology_.pool(pool).index_of(groups_.rank);
  if (index < 0) {
    throw UsageError(
        "[Placement] rank " + std::to_string(groups_.rank) + " is not in pool \"" + pool + "\".");
  }
  return index;
}

RowRange Placement::rows(const std::string& pool) const {
  return topology_.pool(pool).shards.at(static_cast<size_t>(index(pool)));
}

Group Placement::group(const std::string& name) const {
  const auto& ranks = topology_.ranks_of(name);
  return groups_.make(group_name(name, ranks), ranks);
}

std::string group_name(const std::string& name, const std::vector<int>& ranks) {
  std::string text = name;
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? " " : ",") + std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace retape::dist
