// Guesses: which sizes make a factor.
#pragma once

#include <retape/dist/topology.h>

#include <string>
#include <vector>

namespace retape::dist::detail {

// Products and quotients of sizes that make `factor`, the simplest, all that are equally simple; empty
// if none of up to three factors does. `roots`: square roots too, as of norms. `within`: relative.
std::vector<std::string> guesses(double factor, const Topology& topology, bool roots, double within);

}  // namespace retape::dist::detail
