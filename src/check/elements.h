// Elements: how two arrays of numbers of one dtype differ, element by element.
#pragma once

#include <retape/compare.h>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

namespace retape::detail {

struct Counted {
  uint64_t differing = 0;
  uint64_t ulps = 0;
  int64_t first = -1;
};

// `tolerance` null: bit for bit, but for NaN's payload.
Counted count_differing(
    c10::ScalarType dtype,
    const void* plain,
    const void* recomputed,
    int64_t count,
    const Tolerance* tolerance);

// All bits are zero, or those of -0.
bool all_zero(c10::ScalarType dtype, const void* data, int64_t count);
bool all_nan(c10::ScalarType dtype, const void* data, int64_t count);

// As many digits as tell it from its neighbours.
std::string element_text(c10::ScalarType dtype, const void* data, int64_t index);

}  // namespace retape::detail
