// What a comparison could not have shown.
#include "dist/gradcheck/fit.h"
#include "dist/gradcheck/judge.h"
#include "dist/gradcheck/number_text.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <set>

namespace retape::dist::detail {

namespace {

using Kind = Verdict::Kind;

double norm_of(const Outcome& outcome, const std::string& name) {
  const auto it = outcome.gradients.find(name);
  return it == outcome.gradients.end() || !it->second.defined() ? 0 : euclidean(it->second);
}

GradRow& row_for(
    std::vector<GradRow>& rows, const Run& run, const std::string& terms, const std::string& name) {
  const auto dtype = run.precision.text();
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const GradRow& row) {
    return row.topology == run.topology.name && row.dtype == dtype && row.terms == terms &&
        row.what == "gradient" && row.tensor == name;
  });
  if (found != rows.end()) {
    return *found;
  }
  auto row = row_of(run, "gradient", name, run.tolerance);
  row.terms = terms;
  return rows.emplace_back(std::move(row));
}

void make_vacuous(GradRow& row, const std::string& reason) {
  if (row.kind == Kind::Equal) {
    row.kind = Kind::Vacuous;
    row.reason = reason;
  }
}

// Of every term and of all together.
std::set<std::string> tensors_of(const Terms& terms) {
  std::set<std::string> names;
  for (const auto* outcome : terms.alone) {
    for (const auto& [name, gradient] : outcome->gradients) {
      names.insert(name);
    }
  }
  for (const auto& [name, gradient] : terms.all->gradients) {
    names.insert(name);
  }
  return names;
}

// Names that a term declares and that no tensor has: a spelling mistake must not pass.
void judge_unknown(
    const Run& run,
    const Term& term,
    const std::set<std::string>& names,
    std::vector<GradRow>& rows) {
  for (const auto& pattern : term.live) {
    const auto known = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return matches(name, {pattern});
    });
    if (!known) {
      make_vacuous(
          row_for(rows, run, term.name, pattern),
          "declared live, and the reference has no gradient of this name");
    }
  }
}

bool same_gradients(const Outcome& a, const Outcome& b) {
  return a.gradients.size() == b.gradients.size() &&
      std::all_of(a.gradients.begin(), a.gradients.end(), [&](const auto& each) {
           const auto other = b.gradients.find(each.first);
           return other != b.gradients.end() && each.second.defined() == other->second.defined() &&
               (!each.second.defined() || at::equal(each.second, other->second));
         });
}

void judge_term(
    const Run& run,
    const Term& term,
    const Outcome& alone,
    const Outcome& all,
    const std::set<std::string>& names,
    std::vector<GradRow>& rows) {
  bool reaches = false;
  for (const auto& name : names) {
    const double own = norm_of(alone, name);
    reaches |= own > 0;
    const bool declared = !term.live.empty() && matches(name, term.live);
    if (own == 0 && declared) {
      make_vacuous(
          row_for(rows, run, term.name, name),
          "declared live, and its gradient is zero. Fix: data or weights with which it is not");
    }
    const double whole = norm_of(all, name);
    const bool live = term.live.empty() ? own > 0 : declared && own > 0;
    if (live && own < run.tolerance * whole) {
      make_vacuous(
          row_for(rows, run, term.name, name),
          "is " + error_number(own / whole) +
              " of this gradient with all terms on, which is judged to " +
              error_number(run.tolerance) +
              ": it cannot be seen there. Fix: a larger coefficient or weights for the check, or "
              "leave the tensor "
              "out of what the term is live for");
    }
  }
  if (!reaches) {
    make_vacuous(row_for(rows, run, term.name, "(any)"), "the term has no gradient at all");
  }
}

}  // namespace

bool matches(const std::string& name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    if (!pattern.empty() && pattern.back() == '*') {
      return name.compare(0, pattern.size() - 1, pattern, 0, pattern.size() - 1) == 0;
    }
    return name == pattern;
  });
}

void judge_visibility(const Run& run, const Terms& terms, std::vector<GradRow>& rows) {
  const auto names = tensors_of(terms);
  for (size_t i = 0; i < terms.terms.size(); ++i) {
    judge_unknown(run, terms.terms[i], names, rows);
    judge_term(run, terms.terms[i], *terms.alone[i], *terms.all, names, rows);
  }
  const bool nothing_is_isolated = terms.terms.size() > 1 &&
      std::all_of(terms.alone.begin(), terms.alone.end(), [&](const Outcome* alone) {
                                     return same_gradients(*alone, *terms.all);
                                   });
  if (nothing_is_isolated) {
    make_vacuous(
        row_for(rows, run, "all", "(any)"),
        "each term alone has the gradients of all together. Fix: each term times its coefficient "
        "in case.terms");
  }
  for (const auto& name : names) {
    if (norm_of(*terms.all, name) == 0 && !matches(name, run.may_be_dead)) {
      make_vacuous(
          row_for(rows, run, terms.terms.size() == 1 ? terms.terms[0].name : "all", name),
          "no gradient, or zeros, with all terms on. Fix: may_be_dead, if that is meant");
    }
  }
}

bool wire_was_used(const std::vector<GradRow>& rows, at::ScalarType dtype, at::ScalarType wire) {
  const auto plain = Precision{dtype, std::nullopt}.text();
  const auto narrow = Precision{dtype, wire}.text();
  std::map<std::string, double> errors;
  const auto key = [](const GradRow& row) {
    return row.topology + "\n" + row.terms + "\n" + row.what + "\n" + row.tensor;
  };
  for (const auto& row : rows) {
    if (row.dtype == plain) {
      errors[key(row)] = row.error;
    }
  }
  return std::any_of(rows.begin(), rows.end(), [&](const GradRow& row) {
    return row.dtype == narrow && row.error != errors[key(row)];
  });
}

}  // namespace retape::dist::detail
