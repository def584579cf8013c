// Guesses: which sizes make a factor.
#pragma once

#include <retape/dist/topology.h>

#include <string>
#include <vector>

namespace retape::dist::detail {

struct Factor {
  double value;
  const Topology& topology;  // in which it was seen
  int microbatches = 1;
};

// Products and quotients of sizes, and of the number of microbatches, that make each factor in its
// topology, the simplest, all that are equally simple; empty if none of up to three sizes does.
// `roots`: square roots too, as of norms. `within`: relative.
std::vector<std::string> guesses(const std::vector<Factor>& factors, bool roots, double within);
inline std::vector<std::string> guesses(
    double factor, const Topology& topology, bool roots, double within) {
  return guesses({{factor, topology}}, roots, within);
}

}  // namespace retape::dist::detail
