// Random numbers by row of the global batch: whoever has a row draws the same numbers for it.
//
//   const auto mine = topology.pool("ci").shards[index];
//   auto noise = row_uniform(seed, "stoch/site3/step0", mine, {length, width}, at::kDouble);
//
// A rank that seeds a generator of its own and draws for its shard gets other numbers than one
// process that draws for the whole batch, and others again with another number of ranks. Here a
// row's numbers come from (seed, name, row) alone. `name` tells apart what must not be the same:
// term, site, step.
#pragma once

#include <retape/api.h>
#include <retape/dist/topology.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace retape::dist {

// [rows.size(), sizes...], uniform in [0, 1): Philox, of which `name` and `seed` make the key and
// the row the stream. Drawn as float64 and rounded to `dtype`: in every dtype the same numbers, but
// for rounding, which may give 1 in a narrow one.
RETAPE_API at::Tensor row_uniform(
    uint64_t seed,
    const std::string& name,
    RowRange rows,
    at::IntArrayRef sizes,
    at::ScalarType dtype = at::kFloat);

// For ops that take a generator (dropout masks, normal_): one for one row, on the CPU. Other dtypes
// draw other numbers from it, as from any of torch's.
RETAPE_API at::Generator row_generator(uint64_t seed, const std::string& name, int64_t row);

}  // namespace retape::dist
