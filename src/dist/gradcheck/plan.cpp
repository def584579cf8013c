#include "dist/gradcheck/plan.h"

#include <algorithm>
#include <sstream>

namespace retape::dist::detail {

namespace {

Planned planned(
    const NamedTopology& topology,
    const Precision& precision,
    const GradCheckOptions& options,
    const Term* alone,
    int steps) {
  Run run{
      topology,
      precision,
      "all",
      tolerance(precision, options),
      false,
      steps,
      options.may_be_dead,
      options.microbatches};
  Case what{
      topology.topology,
      {},
      precision.dtype,
      precision.wire,
      steps,
      options.seed,
      options.microbatches};
  for (const auto& term : options.terms) {
    const bool on = !alone || alone == &term;
    what.terms[term.name] = on ? term.coefficient : 0;
  }
  if (alone || options.terms.size() == 1) {
    const auto& only = alone ? *alone : options.terms.front();
    run.terms = only.name;
    run.random = only.random;
  }
  if (steps > 0) {
    run.terms += ", " + std::to_string(steps) + (steps == 1 ? " step" : " steps");
  }
  return {run, what};
}

}  // namespace

std::string Planned::name() const {
  return run.topology.name + "; " + run.precision.text() + "; " + run.terms;
}

Planned plan_all(
    const NamedTopology& topology, const Precision& precision, const GradCheckOptions& options) {
  return planned(topology, precision, options, nullptr, 0);
}

std::vector<Planned> plan_alone(
    const NamedTopology& topology, const Precision& precision, const GradCheckOptions& options) {
  std::vector<Planned> all;
  for (const auto& term : options.terms) {
    if (options.terms.size() > 1) {
      all.push_back(planned(topology, precision, options, &term, 0));
    }
  }
  return all;
}

std::optional<Planned> plan_steps(
    const NamedTopology& topology, const Precision& precision, const GradCheckOptions& options) {
  if (options.steps == 0) {
    return std::nullopt;
  }
  return planned(topology, precision, options, nullptr, options.steps);
}

int runs_in(const Precision& precision, const GradCheckOptions& options) {
  const int terms = static_cast<int>(options.terms.size());
  return 1 + (terms > 1 ? terms : 0) + (options.steps > 0 ? 1 : 0);
}

std::string text_of(const GradCheckOptions& options) {
  std::ostringstream text;
  text.precision(17);
  for (const auto& term : options.terms) {
    text << "term " << term.name << " " << term.coefficient << "; ";
  }
  for (const auto& [name, topology] : options.topologies) {
    text << "topology " << name << ": " << topology.text() << "; ";
  }
  for (const auto& precision : precisions(options)) {
    text << precision.text() << " to " << tolerance(precision, options) << "; ";
  }
  text << options.steps << " steps; " << options.microbatches << " microbatches; replicated "
       << options.replicated << "; ragged " << options.ragged << "; empty " << options.empty
       << "; mutations " << options.mutations << "; seed " << options.seed;
  return text.str();
}

}  // namespace retape::dist::detail
