// Product: rows times a whole matrix, whose backward adds the matrix's gradient straight to its
// sum.
#pragma once

#include "backward/rows/accumulator.h"

#include <memory>

namespace retape::detail {

struct Factor {
  at::Tensor tensor;                 // within a slice's graph
  std::shared_ptr<Accumulator> sum;  // null: it wants no gradient, or the graph gives it
};

// rows * matrix, plus `added` unless undefined. `idle`: nobody looks at the numbers, so they are
// not computed. `sink` is reached by its backward whatever else is, so that it runs. `blocks`: see
// Accumulator.
at::Tensor product_of(
    const Factor& added,
    const at::Tensor& rows,
    const Factor& matrix,
    bool idle,
    const at::Tensor& sink,
    int64_t blocks);

}  // namespace retape::detail
