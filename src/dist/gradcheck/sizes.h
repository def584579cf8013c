// Sizes: the numbers of ranks that a wrong factor may consist of, and what a set of topologies can
// show.
#pragma once

#include <retape/dist/gradcheck.h>

namespace retape::dist::detail {

// A number of ranks with a name. Pools that differ only in the number at their end and are of one
// size (block0, block1), or that have the same ranks, are one: "n_block0".
struct Size {
  std::string name;
  std::vector<std::string> pools;
  int value = 1;
};

std::vector<Size> sizes_of(const Topology& topology);

int all_ranks(const Topology& topology);  // of any pool

// Why these topologies prove nothing.
std::vector<std::string> vacuous_topologies(const std::vector<NamedTopology>& topologies);
// What they do not show.
std::vector<std::string> notes_on(const std::vector<NamedTopology>& topologies);

// Every rank of every pool has as many rows as the others of its pool.
bool is_even(const Topology& topology);

// Some rank of it has twice as many rows as another, or more than one row more. even_shards of 10
// rows on 4 ranks are not even, and hardly uneven.
bool is_uneven(const Pool& pool);

// Pools that could be cut unevenly, and are not in any of these.
std::vector<std::string> never_uneven(const std::vector<NamedTopology>& topologies);

// It has a pool of one of these names that could be cut so.
bool can_be_uneven(const Topology& topology, const std::vector<std::string>& names);

// The same ranks, with shards of very different sizes in pools that are not uneven; none if that
// changes nothing, as where every rank has one row.
std::optional<Topology> ragged(const Topology& topology);

// `rows` in `shards` parts: one each, and of the others more from part to part.
std::vector<RowRange> uneven_shards(int64_t rows, int shards, bool growing);

// The best place for a self-test: as many different sizes as can be, then few ranks. None if all
// are 1.
const NamedTopology* most_different(const std::vector<NamedTopology>& topologies);

}  // namespace retape::dist::detail
