// Explain: why a row may differ. What was measured comes first, then candidates, the likeliest
// first: a fit does not tell causes apart.
#pragma once

#include "dist/gradcheck/judge.h"

namespace retape::dist::detail {

// Of a row whose alpha, residual and guesses are known.
std::string explain(const GradRow& row, const Run& run);

// How closely sizes must make an alpha, relative.
double within(const GradRow& row);

// A factor that one topology explains in several ways, n_ci or n_ppgd, another explains in one:
// where a tensor is off by factors in some of them, its guesses become those that hold in all.
void guess_from_all_topologies(
    std::vector<GradRow>& rows, const std::vector<NamedTopology>& topologies, int microbatches = 1);

// What a variant was made from.
struct Origin {
  std::string from;
  bool empty = false;  // a rank has no rows; else shards are ragged
};

// Adds to the reason of a row that differs what its neighbours tell: only a variant differs, or
// only a dtype of production. `variants`: by name.
void explain_by_neighbours(
    std::vector<GradRow>& rows, const std::map<std::string, Origin>& variants);

}  // namespace retape::dist::detail
