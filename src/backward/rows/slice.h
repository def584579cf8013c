// Slice: some rows, one after another, and how tensors are cut to them.
#pragma once

#include "backward/rows/plan.h"

namespace retape::detail {

struct Slice {
  int64_t first;
  int64_t count;
};

// Of at most ceil(rows / slices) rows each.
std::vector<Slice> slices_of(const Plan& plan, int64_t slices);

// Sizes of a tensor with rows within a slice: [1, count | trailing].
std::vector<int64_t> sliced(c10::IntArrayRef sizes, int lead, int64_t count);

// The rows of a tensor that carries them. A view where its strides allow it (a contiguous one's
// do).
at::Tensor cut_rows(const at::Tensor& tensor, int lead, const Slice& slice);

// What of a whole tensor stands beside those rows.
at::Tensor cut_whole(const at::Tensor& tensor, const CutTensor& cut, const Slice& slice);

}  // namespace retape::detail
