// Sizes: the numbers of ranks that a wrong factor may consist of, and what a set of topologies can show.
#pragma once

#include <retape/dist/gradcheck.h>

namespace retape::dist::detail {

// A number of ranks with a name. Pools that differ only in the number at their end and are of one size
// (block0, block1), or that have the same ranks, are one: "n_block0".
struct Size {
  std::string name;
  std::vector<std::string> pools;
  int value = 1;
};

std::vector<Size> sizes_of(const Topology& topology);

// Products and quotients of sizes that make `factor`, the simplest, all that are equally simple; empty
// if none of up to three factors does. `roots`: square roots too, as of norms. `within`: relative.
std::vector<std::string> guesses(double factor, const Topology& topology, bool roots, double within);

// Why these topologies prove nothing.
std::vector<std::string> vacuous_topologies(const std::vector<NamedTopology>& topologies);
// What they do not show.
std::vector<std::string> notes_on(const std::vector<NamedTopology>& topologies);

bool is_ragged(const Topology& topology);

// The same ranks with shards of very different sizes; none if every rank has one row.
std::optional<Topology> ragged(const Topology& topology);

// The best place for a self-test: as many different sizes as can be, then few ranks. None if all are 1.
const NamedTopology* most_different(const std::vector<NamedTopology>& topologies);

}  // namespace retape::dist::detail
