// Normal numbers by global row, after retape::dist::row_uniform: (seed, name, row) decide each of
// them, so a rank that has ten rows of the batch draws for them what one process with all rows
// draws there. Seeding every rank alike would not do: with other shapes they read the same stream
// in other places.
#pragma once

#include <retape/dist/row_random.h>

namespace three_pool {

// [rows, sizes...]; drawn in float64 and then rounded.
at::Tensor row_normal(
    uint64_t seed,
    const std::string& name,
    retape::dist::RowRange rows,
    at::IntArrayRef sizes,
    at::ScalarType dtype);

}  // namespace three_pool
