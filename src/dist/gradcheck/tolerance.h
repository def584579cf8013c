// Precision: in which dtype a case is computed and travels.
#pragma once

#include <retape/dist/gradcheck.h>

namespace retape::dist::detail {

double epsilon(at::ScalarType dtype);  // UsageError: of a dtype that nothing is judged in

struct Precision {
  at::ScalarType dtype = at::kDouble;
  std::optional<at::ScalarType> wire;

  std::string text() const;  // "float64", "float32, bfloat16 wire"
  bool decides() const { return dtype == at::kDouble && !wire; }
};

// float64 first.
std::vector<Precision> precisions(const GradCheckOptions& options);

double tolerance(const Precision& precision, const GradCheckOptions& options);

// Of how far a parameter moves in some steps: ||difference|| / ||movement|| may be this.
struct Movement {
  int steps = 1;
  int64_t count = 1;  // of numbers
  double size = 1;    // ||parameter|| / ||movement||
};
double movement_tolerance(const Precision& precision, double tolerance, const Movement& movement);

}  // namespace retape::dist::detail
