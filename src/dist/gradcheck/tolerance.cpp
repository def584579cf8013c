#include "dist/gradcheck/tolerance.h"

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <limits>

namespace retape::dist {

double detail::epsilon(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return std::numeric_limits<double>::epsilon();
    case at::kFloat:
      return std::numeric_limits<float>::epsilon();
    case at::kHalf:
      return std::numeric_limits<c10::Half>::epsilon();
    case at::kBFloat16:
      return std::numeric_limits<c10::BFloat16>::epsilon();
    default:
      break;
  }
  throw UsageError(
      std::string("[GradCheck] no tolerance is known for ") + c10::toString(dtype) +
      ". Fix: float64, float32, float16 or bfloat16.");
}

namespace {

using detail::epsilon;

// To round is to be off by up to eps / 2. Not bounds, which would hide faults, but what happens:
//
// In float32 sums are where errors come from. Those of n numbers walk, to sqrt(n) * eps / 2: to 50
// eps for the 10^4 of a long sum. One in forward, one in backward.
constexpr double kSums = 100;
// Of a narrow dtype sums are kept in a wider one, and what counts is how often a number is rounded
// on its way: stored, sent, taken into the next product. A chain of 16, all in one direction.
constexpr double kChain = 16 * 0.5;

double rounding(at::ScalarType dtype) {
  return (epsilon(dtype) < 1e-4 ? kSums : kChain) * epsilon(dtype);
}

}  // namespace

double derived_tolerance(at::ScalarType dtype, std::optional<at::ScalarType> wire) {
  const double own = dtype == at::kDouble ? 1e-12 : rounding(dtype);
  return wire && epsilon(*wire) > epsilon(dtype) ? own + kChain * epsilon(*wire) : own;
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
  return given != options.tolerance.end() ? given->second
                                          : derived_tolerance(precision.dtype, precision.wire);
}

double movement_tolerance(const Precision& precision, double tolerance, const Movement& movement) {
  if (precision.decides()) {
    return tolerance * movement.size;
  }
  // An optimizer that divides by the size of a gradient (Adam) makes a whole step of the sign of a
  // number near zero, and rounding may turn that sign: then it is off by twice its movement. Of
  // numbers spread evenly up to the largest a share `tolerance` is no larger than what rounding may
  // do, and of those it turns a quarter: tolerance / 4 * count turns, and three of their standard
  // deviations more, each a square of 4 in a movement of `count` squares of 1.
  const auto count = static_cast<double>(movement.count);
  const double turns = tolerance / 4 * count;
  const double turned = std::sqrt(4 * (turns + 3 * std::sqrt(turns)) / count);
  // A step rounds the parameter twice (decay, then movement), on ranks and in the reference: 4 *
  // eps / 2.
  return turned + 2 * movement.steps * epsilon(precision.dtype) * movement.size;
}

}  // namespace detail

}  // namespace retape::dist
