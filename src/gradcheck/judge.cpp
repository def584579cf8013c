#include "gradcheck/judge.h"

#include "gradcheck/fit.h"
#include "gradcheck/number_text.h"
#include "gradcheck/sizes.h"

#include <ATen/Functions.h>

#include <cmath>
#include <limits>
#include <set>
#include <sstream>

namespace retape::dist::detail {

namespace {

using Kind = Verdict::Kind;
using Tensors = std::map<std::string, at::Tensor>;

constexpr double kNoFactor = 1e-9;  // a residual up to this is rounding, in any dtype
constexpr double kOne = 1e-6;       // an alpha so close to one is one

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "" : " or ") + words[i];
  }
  return text;
}

GradRow row_of(const Run& run, const char* what, const std::string& name, double tolerance) {
  GradRow row;
  row.topology = run.topology.name;
  row.dtype = run.precision.text();
  row.terms = run.terms;
  row.what = what;
  row.tensor = name;
  row.tolerance = tolerance;
  return row;
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

std::string explain(const GradRow& row, const Run& run) {
  if (row.residual <= std::max(kNoFactor, row.tolerance)) {
    if (std::abs(row.alpha - 1) <= kOne) {
      return "no factor, and more than rounding: residual " + error_number(row.residual);
    }
    const auto times = short_number(row.alpha) + " times the reference";
    return times + (row.guesses.empty() ? ", which no sizes of pools make" : ": " + joined(row.guesses));
  }
  std::string text = "no factor explains it (alpha " + short_number(row.alpha) + ", residual " +
      short_number(row.residual) + "): ";
  if (run.random) {
    text += "a term that draws random numbers may draw others on ranks; by row they are the same (row_random.h)";
  } else {
    text += "a function of a rank's own sum, a mean of each rank's mean, other rows, or a part that is missing";
  }
  return text;
}

// `reference` is not zero.
void compare(GradRow& row, const Run& run, const at::Tensor& reference, const at::Tensor& found, bool roots) {
  if (reference.sizes() != found.sizes()) {
    std::ostringstream text;
    text << "sizes are " << found.sizes() << ", of the reference " << reference.sizes();
    row.error = std::numeric_limits<double>::infinity();
    return differ(row, text.str());
  }
  const auto fitted = fit(reference, found);
  if (!fitted.finite) {
    row.error = std::numeric_limits<double>::infinity();
    if (!std::isfinite(largest(reference))) {
      row.kind = Kind::Vacuous;
      row.reason = "the reference is not finite";
      return;
    }
    return differ(row, "not finite, and the reference is");
  }
  row.error = fitted.error;
  row.alpha = fitted.alpha;
  row.residual = fitted.residual;
  if (row.error > row.tolerance) {
    const double within = std::max(kOne, std::min(row.tolerance, 1e-2));
    row.guesses = guesses(row.alpha, run.topology.topology, roots, within);
    differ(row, explain(row, run));
  }
}

// A reference of zeros, or none: ranks must have the same. False: there is nothing to tell.
bool compare_zeros(GradRow& row, const Tensors& found, double scale) {
  const double most = largest_of(found, row.tensor);
  if (most <= row.tolerance * scale) {
    return false;
  }
  row.error = std::numeric_limits<double>::infinity();
  row.alpha = std::numeric_limits<double>::infinity();
  differ(row, "the reference has none, and ranks have up to " + short_number(most));
  return true;
}

void compare_missing(GradRow& row) {
  row.error = 1;
  row.alpha = 0;
  differ(row, "no rank has it");
}

void judge_tensors(
    const Run& run,
    const char* what,
    double tolerance,
    const Tensors& reference,
    const Tensors& found,
    const std::map<std::string, std::string>& odd,
    const Tensors& scale,
    std::vector<GradRow>& rows) {
  for (const auto& name : names_of(reference, found)) {
    auto row = row_of(run, what, name, tolerance);
    bool told = true;
    if (largest_of(reference, name) == 0) {
      told = compare_zeros(row, found, largest_of(scale, name));
    } else if (!has(found, name)) {
      compare_missing(row);
    } else {
      compare(row, run, reference.at(name), found.at(name), /*roots=*/false);
    }
    if (const auto it = odd.find(name); it != odd.end()) {
      differ(row, it->second);
      told = true;
    }
    if (told) {
      rows.push_back(std::move(row));
    }
  }
}

void judge_norms(const Run& run, const Outcome& reference, const United& ranks, std::vector<GradRow>& rows) {
  const auto tensors = [](const std::map<std::string, double>& norms) {
    Tensors all;
    for (const auto& [name, value] : norms) {
      all[name] = at::full({1}, value, at::kDouble);
    }
    return all;
  };
  const auto expected = tensors(reference.norms);
  const auto found = tensors(ranks.outcome.norms);
  for (const auto& name : names_of(expected, found)) {
    auto row = row_of(run, "norm", name, run.tolerance);
    if (!has(expected, name)) {
      differ(row, "the reference has none of this name");
    } else if (!has(found, name)) {
      compare_missing(row);
    } else if (largest_of(expected, name) == 0) {
      compare_zeros(row, found, 0);
    } else {
      compare(row, run, expected.at(name), found.at(name), /*roots=*/true);
    }
    if (const auto it = ranks.odd_norms.find(name); it != ranks.odd_norms.end()) {
      differ(row, it->second);
    }
    rows.push_back(std::move(row));
  }
}

}  // namespace

std::vector<GradRow> judge(const Run& run, const Outcome& reference, const United& ranks, const Outcome& scale) {
  std::vector<GradRow> rows;
  judge_tensors(
      run, "gradient", run.tolerance, reference.gradients, ranks.outcome.gradients, ranks.odd_gradients,
      scale.gradients, rows);
  judge_tensors(
      run, "parameter", parameter_tolerance(run.precision, run.tolerance), reference.parameters,
      ranks.outcome.parameters, ranks.odd_parameters, {}, rows);
  judge_norms(run, reference, ranks, rows);
  return rows;
}

}  // namespace retape::dist::detail
