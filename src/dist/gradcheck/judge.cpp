#include "dist/gradcheck/judge.h"

#include "dist/gradcheck/explain.h"
#include "dist/gradcheck/fit.h"
#include "dist/gradcheck/guess.h"
#include "dist/gradcheck/number_text.h"
#include "dist/gradcheck/tolerance.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>

namespace retape::dist::detail {

namespace {

using Kind = Verdict::Kind;
using Tensors = std::map<std::string, at::Tensor>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void become_vacuous(GradRow& row, const std::string& reason) {
  row.kind = Kind::Vacuous;
  row.reason = reason;
}

void differ(GradRow& row, const std::string& reason) {
  row.kind = Kind::Different;
  row.reason += (row.reason.empty() ? "" : "; ") + reason;
}

bool has(const Tensors& tensors, const std::string& name) {
  const auto it = tensors.find(name);
  return it != tensors.end() && it->second.defined();
}

double largest_of(const Tensors& tensors, const std::string& name) {
  return has(tensors, name) ? largest(tensors.at(name)) : 0;
}

std::set<std::string> names_of(const Tensors& a, const Tensors& b) {
  std::set<std::string> names;
  for (const auto* each : {&a, &b}) {
    for (const auto& [name, tensor] : *each) {
      names.insert(name);
    }
  }
  return names;
}

bool same_sizes(GradRow& row, const at::Tensor& reference, const at::Tensor& found) {
  if (reference.sizes() == found.sizes()) {
    return true;
  }
  std::ostringstream text;
  text << "sizes are " << found.sizes() << ", of the reference " << reference.sizes();
  row.error = kInfinity;
  differ(row, text.str());
  return false;
}

// Fills in what was fitted; false where that is not finite.
bool fits(GradRow& row, const at::Tensor& reference, const at::Tensor& found) {
  const auto fitted = fit(reference, found);
  if (!fitted.finite) {
    row.error = kInfinity;
    if (std::isfinite(largest(reference))) {
      differ(row, "not finite, and the reference is");
    } else {
      become_vacuous(row, "the reference is not finite");
    }
    return false;
  }
  row.error = fitted.error;
  row.alpha = fitted.alpha;
  row.residual = fitted.residual;
  return true;
}

void hold_to_tolerance(GradRow& row, const Run& run, bool roots, const std::string& of = "") {
  if (row.error > row.tolerance) {
    row.guesses = guesses(
        {{row.alpha, run.topology.topology, run.microbatches}}, roots, within(row));
    differ(row, of + explain(row, run));
  }
}

// `reference` is not zero.
void compare(
    GradRow& row,
    const Run& run,
    const at::Tensor& reference,
    const at::Tensor& found,
    bool roots) {
  if (same_sizes(row, reference, found) && fits(row, reference, found)) {
    hold_to_tolerance(row, run, roots);
  }
}

void compare_movement(
    GradRow& row,
    const Run& run,
    const at::Tensor& before,
    const at::Tensor& reference,
    const at::Tensor& found) {
  if (!same_sizes(row, reference, found) || !same_sizes(row, before, reference)) {
    return;
  }
  const auto expected = as_double(reference) - as_double(before);
  const auto moved = as_double(found) - as_double(before);
  if (largest(expected) == 0) {
    if (largest(moved) > 0) {
      row.error = kInfinity;
      differ(
          row,
          "moves by up to " + short_number(largest(moved)) + ", and in the reference it does not");
    } else if (!matches(row.tensor, run.may_be_dead)) {
      become_vacuous(row, "steps do not move it. Fix: may_be_dead, if that is meant");
    }
    return;
  }
  const Movement movement{run.steps, expected.numel(), euclidean(reference) / euclidean(expected)};
  row.tolerance = movement_tolerance(run.precision, run.tolerance, movement);
  if (!fits(row, expected, moved)) {
    return;
  }
  row.error = std::hypot(row.alpha - 1, row.residual);  // the two are at right angles
  hold_to_tolerance(row, run, /*roots=*/false, "movement in steps: ");
  if (row.kind == Kind::Equal && row.tolerance >= 1) {
    become_vacuous(
        row,
        "moves by " + error_number(1 / movement.size) +
            " of its size, and rounding may be off by " + error_number(row.tolerance) +
            " of that: standing still would pass. Fix: a larger rate or more steps "
            "for the check");
  }
}

// A reference of zeros, or none: ranks must have the same. False: there is nothing to tell.
bool compare_zeros(GradRow& row, const Tensors& found, double scale) {
  const double most = largest_of(found, row.tensor);
  if (most <= row.tolerance * scale) {
    return false;
  }
  row.error = kInfinity;
  row.alpha = kInfinity;
  differ(row, "the reference has none, and ranks have up to " + short_number(most));
  return true;
}

void compare_missing(GradRow& row) {
  row.error = 1;
  row.alpha = 0;
  differ(row, "no rank has it");
}

void drift_apart(GradRow& row, const std::string& which) {
  row.replicas_differ = true;
  differ(row, which);
}

// Gradients that are zero but for rounding (of the keys' bias in attention, of a bias before a
// norm): what there is of them hangs on the order of sums, which is another one on ranks.
class Noise {
 public:
  Noise(const Run& run, const Tensors& reference, const Tensors& found)
      : run_(run),
        reference_(reference),
        found_(found) {
    for (const auto& [name, gradient] : reference) {
      most_ = std::max(most_, largest_of(reference, name));
    }
  }

  // A row that differs of nothing else has shown nothing. False: nobody expects more of it, and it
  // is left out.
  bool excuse(GradRow& row) const {
    const bool declared = matches(row.tensor, run_.may_be_dead);
    const double here = largest_of(reference_, row.tensor), level = this->level(declared);
    if (row.kind != Kind::Different || !std::isfinite(row.error) || here > level ||
        largest_of(found_, row.tensor) > level) {
      return true;
    }
    row.guesses.clear();
    become_vacuous(
        row,
        "its gradient is up to " + error_number(here) +
            ", which is rounding beside that of others, and ranks round "
            "otherwise. Fix: may_be_dead, if it is zero by its nature");
    return !declared;
  }

 private:
  // Of a narrow dtype that many roundings are all there is: there it is a part of others that is as
  // good as nothing, and more of them for what is known to be zero.
  double level(bool declared) const {
    const double roundings = 1000 * epsilon(run_.precision.dtype);
    return std::isfinite(most_) ? std::min(roundings, declared ? 0.05 : 1e-3) * most_ : 0;
  }

  const Run& run_;
  const Tensors& reference_;
  const Tensors& found_;
  double most_ = 0;
};

void judge_gradients(
    const Run& run,
    const Tensors& reference,
    const United& ranks,
    const Tensors& scale,
    std::vector<GradRow>& rows) {
  const auto& found = ranks.outcome.gradients;
  const Noise noise(run, reference, found);
  for (const auto& name : names_of(reference, found)) {
    auto row = row_of(run, "gradient", name, run.tolerance);
    bool told = true;
    if (largest_of(reference, name) == 0) {
      told = compare_zeros(row, found, largest_of(scale, name));
    } else if (!has(found, name)) {
      compare_missing(row);
    } else {
      compare(row, run, reference.at(name), found.at(name), /*roots=*/false);
      told = noise.excuse(row);
    }
    if (const auto it = ranks.odd_gradients.find(name); it != ranks.odd_gradients.end()) {
      drift_apart(row, it->second);
      told = true;
    }
    if (told) {
      rows.push_back(std::move(row));
    }
  }
}

void judge_parameters(
    const Run& run,
    const Outcome& expected,
    const United& ranks,
    const Tensors& before,
    std::vector<GradRow>& rows) {
  const auto& reference = expected.parameters;
  const auto& found = ranks.outcome.parameters;
  const Noise noise(run, expected.gradients, ranks.outcome.gradients);
  for (const auto& name : names_of(reference, found)) {
    auto row = row_of(run, "parameter", name, run.tolerance);
    bool told = true;
    if (!has(reference, name)) {
      row.error = kInfinity;
      differ(row, "the reference has none of this name");
    } else if (!has(found, name)) {
      compare_missing(row);
    } else if (!has(before, name)) {
      become_vacuous(
          row,
          "how far it moves is not known. Fix: a reference that gives parameters with steps 0, "
          "too");
    } else {
      compare_movement(row, run, before.at(name), reference.at(name), found.at(name));
      told = !has(expected.gradients, name) || noise.excuse(row);
    }
    if (const auto it = ranks.odd_parameters.find(name); it != ranks.odd_parameters.end()) {
      drift_apart(row, it->second);
      told = true;
    }
    if (told) {
      rows.push_back(std::move(row));
    }
  }
}

using Numbers = std::map<std::string, double>;

Tensors tensors_of(const Numbers& numbers) {
  Tensors tensors;
  for (const auto& [name, value] : numbers) {
    tensors[name] = at::full({1}, value, at::kDouble);
  }
  return tensors;
}

// `odd`: by name, which ranks have another one.
void judge_numbers(
    const Run& run,
    const char* what,
    const Numbers& reference,
    const Numbers& ranks,
    const std::map<std::string, std::string>& odd,
    bool roots,
    std::vector<GradRow>& rows) {
  const auto expected = tensors_of(reference);
  const auto found = tensors_of(ranks);
  for (const auto& name : names_of(expected, found)) {
    auto row = row_of(run, what, name, run.tolerance);
    if (!has(expected, name)) {
      differ(row, "the reference has none of this name");
    } else if (!has(found, name)) {
      compare_missing(row);
    } else if (largest_of(expected, name) == 0) {
      compare_zeros(row, found, 0);
    } else {
      compare(row, run, expected.at(name), found.at(name), roots);
    }
    if (const auto it = odd.find(name); it != odd.end()) {
      drift_apart(row, it->second);
    }
    rows.push_back(std::move(row));
  }
}

}  // namespace

bool any_is(Kind kind, const std::vector<GradRow>& rows) {
  return std::any_of(
      rows.begin(), rows.end(), [&](const GradRow& row) { return row.kind == kind; });
}

GradRow row_of(const Run& run, const std::string& what, const std::string& name, double tolerance) {
  GradRow row;
  row.topology = run.topology.name;
  row.dtype = run.precision.text();
  row.terms = run.terms;
  row.what = what;
  row.tensor = name;
  row.tolerance = tolerance;
  return row;
}

std::vector<GradRow> judge(
    const Run& run, const Outcome& reference, const United& ranks, const Outcome& scale) {
  std::vector<GradRow> rows;
  judge_gradients(run, reference.gradients, ranks, scale.gradients, rows);
  if (run.steps > 0) {
    judge_parameters(run, reference, ranks, scale.parameters, rows);
  }
  const auto& found = ranks.outcome;
  judge_numbers(run, "norm", reference.norms, found.norms, ranks.odd_norms, /*roots=*/true, rows);
  judge_numbers(
      run, "loss", reference.losses, found.losses, ranks.odd_losses, /*roots=*/false, rows);
  return rows;
}

}  // namespace retape::dist::detail
