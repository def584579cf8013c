// Precision: in which dtype a case is computed and travels.
#pragma once

#include <retape/dist/gradcheck.h>

namespace retape::dist::detail {

struct Precision {
  at::ScalarType dtype = at::kDouble;
  std::optional<at::ScalarType> wire;

  std::string text() const;  // "float64", "float32, bfloat16 wire"
  bool decides() const { return dtype == at::kDouble && !wire; }
};

// float64 first.
std::vector<Precision> precisions(const GradCheckOptions& options);

double tolerance(const Precision& precision, const GradCheckOptions& options);

// Of parameters after some steps. An optimizer that divides by the size of the gradient turns the
// rounding of a gradient near zero into a step of its full length, so but for float64 it is the root.
double parameter_tolerance(const Precision& precision, double tolerance);

}  // namespace retape::dist::detail
