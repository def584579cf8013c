// How a verdict reads.
#pragma once

#include <retape/verify.h>

namespace retape::detail {

// `gradient "w": 3 of 12 elements, at most 2 ulps apart, first at [0, 3]: 1 against 1.5`; with the
// order and the step before it, if asked for.
std::string line_of(const Difference& difference, bool where);

}  // namespace retape::detail
