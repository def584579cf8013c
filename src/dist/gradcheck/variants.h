// Variants: topologies that GradCheck adds to those that it was given.
//
// Even shards hide a mean of each rank's mean, so pools are cut raggedly. Ranks that run out of
// batches continue with 0 rows, so a rank of each pool has none.
#pragma once

#include "dist/gradcheck/explain.h"

namespace retape::dist::detail {

struct Variants {
  std::vector<NamedTopology> topologies;    // those that were given, then variants
  std::map<std::string, Origin> made_from;  // by name
};

Variants with_variants(const GradCheckOptions& options);

// A rank of it has no rows.
bool has_empty_shard(const Pool& pool);
bool has_empty_shard(const Topology& topology);

// Pools that could have an empty shard, and have none in any of these.
std::vector<std::string> never_empty(const std::vector<NamedTopology>& topologies);

// The same ranks, with an empty shard in each pool of several ranks: the last one's, the first
// one's, in turns. None if no pool has several ranks.
std::optional<Topology> with_empty_shards(const Topology& topology);

}  // namespace retape::dist::detail
