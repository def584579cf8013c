// Plan: which cases there are.
#pragma once

#include "dist/gradcheck/judge.h"

namespace retape::dist::detail {

// A run and the case that it is of.
struct Planned {
  Run run;
  Case what;
  std::string name() const;  // "4; float64; all"
};

// With all terms on.
Planned plan_all(
    const NamedTopology& topology, const Precision& precision, const GradCheckOptions& options);
// Each term alone; none if there is only one, which is all.
std::vector<Planned> plan_alone(
    const NamedTopology& topology, const Precision& precision, const GradCheckOptions& options);
// With all terms on and the optimizer; none without steps.
std::optional<Planned> plan_steps(
    const NamedTopology& topology, const Precision& precision, const GradCheckOptions& options);

int runs_in(const Precision& precision, const GradCheckOptions& options);

// All that ranks must have given alike, in one line.
std::string text_of(const GradCheckOptions& options);

}  // namespace retape::dist::detail
