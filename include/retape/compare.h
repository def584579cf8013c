// compare: two tensors, bit for bit or within a tolerance.
#pragma once

#include <retape/api.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace retape {

struct Tolerance {
  double rtol = 0;
  double atol = 0;
};

// One tensor that is not the same.
struct Difference {
  std::string order;  // "backward", "losses b, a", "backward twice", "two forwards"
  int step = 0;
  std::string what;  // "gradient", "output", "loss", "buffer", "parameter", "generator"; "error"
                     // that the plain run ends with, and the recomputed one does not
  std::string name;
  uint64_t differing = 0;  // elements
  uint64_t elements = 0;
  uint64_t ulps = 0;              // the largest distance; 0 for what has none
  std::string first;              // "[0, 3]": index of the first
  std::string plain, recomputed;  // values there; without an index: "none", "float32 [2, 3]"
};

// All elements of two tensors, as Difference's counts; std::nullopt: the same. Other sizes, dtypes
// and devices are differences, other strides are not; sparse tensors are compared as dense ones.
// UsageError for what has no bytes of its own: wrapper subclasses, nested, quantized and meta
// tensors.
RETAPE_API std::optional<Difference> compare(
    const at::Tensor& plain,
    const at::Tensor& recomputed,
    const std::map<c10::ScalarType, Tolerance>& tolerance = {});

}  // namespace retape
