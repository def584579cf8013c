#include "gradcheck/tolerance.h"

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <limits>

namespace retape::dist {

namespace {

double eps(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble: return std::numeric_limits<double>::epsilon();
    case at::kFloat: return std::numeric_limits<float>::epsilon();
    case at::kHalf: return std::numeric_limits<c10::Half>::epsilon();
    case at::kBFloat16: return std::numeric_limits<c10::BFloat16>::epsilon();
    default: break;
  }
  throw UsageError(
      std::string("[GradCheck] no tolerance is known for ") + c10::toString(dtype) +
      ". Fix: float64, float32, float16 or bfloat16.");
}

// A sum of many rounded numbers; where every number is rounded hard, sums are kept in a wider dtype.
double rounding(at::ScalarType dtype) {
  return (eps(dtype) < 1e-4 ? 100 : 8) * eps(dtype);
}

}  // namespace

double derived_tolerance(at::ScalarType dtype, std::optional<at::ScalarType> wire) {
  const double own = dtype == at::kDouble ? 1e-12 : rounding(dtype);
  return wire && eps(*wire) > eps(dtype) ? own + 8 * eps(*wire) : own;
}

namespace detail {

std::string Precision::text() const {
  const auto name = [](at::ScalarType type) { return std::string(c10::getDtypeNames(type).first); };
  return name(dtype) + (wire ? ", " + name(*wire) + " wire" : "");
}

std::vector<Precision> precisions(const GradCheckOptions& options) {
  std::vector<Precision> all{{}};
  for (const auto dtype : options.dtypes) {
    if (dtype != at::kDouble) {
      all.push_back({dtype, std::nullopt});
    }
    if (options.wire && *options.wire != dtype) {
      all.push_back({dtype, options.wire});
    }
  }
  return all;
}

double tolerance(const Precision& precision, const GradCheckOptions& options) {
  const auto given = options.tolerance.find(precision.dtype);
  return given != options.tolerance.end() ? given->second : derived_tolerance(precision.dtype, precision.wire);
}

double parameter_tolerance(const Precision& precision, double tolerance) {
  return precision.decides() ? tolerance : std::sqrt(tolerance);
}

}  // namespace detail

}  // namespace retape::dist
