// Judging: rows for one run, from what the reference has and what ranks hold. Nothing here
// communicates.
#pragma once

#include "dist/gradcheck/tolerance.h"

#include <map>

namespace retape::dist::detail {

// What some ranks return and others do not.
struct Absence {
  std::string what;  // as rows have it: "gradient"
  std::string name;
  std::vector<int> present, absent;  // ranks
};

// What ranks hold together.
struct United {
  Outcome outcome;  // of each tensor the first rank's that holds it
  // Of names in `outcome`: which ranks hold another one.
  std::map<std::string, std::string> odd_gradients = {}, odd_parameters = {}, odd_norms = {},
                                     odd_losses = {};
  // Of those that are no difference, for notes.
  std::vector<Absence> absences = {};
  std::vector<int> silent = {};  // ranks that return nothing
};

// A run, as rows name it.
struct Run {
  const NamedTopology& topology;
  Precision precision;
  std::string terms;
  double tolerance = 0;
  bool random = false;  // the one term that is on draws random numbers
  int steps = 0;        // of the optimizer
  std::vector<std::string> may_be_dead = {};
  int microbatches = 1;
};

// `scale`: the reference with all terms on, before any step. Where it has no gradient, ranks may
// have what rounds to zero beside those of `scale`; where both have none there is no row.
// Parameters are compared after steps only, by how far they have moved from those of `scale`.
std::vector<GradRow> judge(
    const Run& run, const Outcome& reference, const United& ranks, const Outcome& scale);

bool any_is(Verdict::Kind kind, const std::vector<GradRow>& rows);

// Of `run`, and equal so far.
GradRow row_of(const Run& run, const std::string& what, const std::string& name, double tolerance);

// Sees through "*" at the end of a pattern.
bool matches(const std::string& name, const std::vector<std::string>& patterns);

// Reference gradients of every term alone, and of all.
struct Terms {
  std::vector<Term> terms;
  std::vector<const Outcome*> alone;
  const Outcome* all = nullptr;
};

// Where a term is too small to be judged, or not there, its row of `rows` becomes vacuous if it was
// equal; a new one where it has none. `run.terms` is of no interest.
void judge_visibility(const Run& run, const Terms& terms, std::vector<GradRow>& rows);

// A wire that changed no number is none: the step does not look at it.
bool wire_was_used(const std::vector<GradRow>& rows, at::ScalarType dtype, at::ScalarType wire);

}  // namespace retape::dist::detail
