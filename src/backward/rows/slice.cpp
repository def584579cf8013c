#include "backward/rows/slice.h"

#include <ATen/Functions.h>

#include <algorithm>

namespace retape::detail {

std::vector<Slice> slices_of(const Plan& plan, int64_t slices) {
  const int64_t most = (plan.rows + slices - 1) / slices;
  std::vector<Slice> found;
  for (int64_t first = 0; first < plan.rows;) {
    int64_t end = std::min(first + most, plan.rows);
    for (const auto period : plan.ends) {
      end = std::min(end, (first / period + 1) * period);
    }
    found.push_back({first, end - first});
    first = end;
  }
  return found;
}

std::vector<int64_t> sliced(c10::IntArrayRef sizes, int lead, int64_t count) {
  auto found = sizes.vec();
  std::fill(found.begin(), found.begin() + lead, 1);
  found[lead - 1] = count;
  return found;
}

namespace {

// Row after row is the same distance on in memory.
bool is_even(const at::Tensor& tensor, int lead) {
  for (int dim = lead - 1; dim > 0; --dim) {
    if (tensor.size(dim - 1) != 1 &&
        tensor.stride(dim - 1) != tensor.stride(dim) * tensor.size(dim)) {
      return false;
    }
  }
  return true;
}

// The rows of one index of the outer dimensions.
at::Tensor cut_within(at::Tensor tensor, c10::IntArrayRef rows, int lead, const Slice& slice) {
  int64_t outer = slice.first / rows[lead - 1];
  if (tensor.size(lead - 1) != 1) {
    tensor = tensor.narrow(lead - 1, slice.first % rows[lead - 1], slice.count);
  }
  for (int dim = lead - 2; dim >= 0; --dim) {
    if (tensor.size(dim) != 1) {
      tensor = tensor.narrow(dim, outer % rows[dim], 1);
    }
    outer /= rows[dim];
  }
  return tensor;
}

}  // namespace

at::Tensor cut_rows(const at::Tensor& tensor, int lead, const Slice& slice) {
  if (lead == 1) {
    return tensor.narrow(0, slice.first, slice.count);
  }
  if (is_even(tensor, lead)) {
    return tensor.as_strided(
        sliced(tensor.sizes(), lead, slice.count),
        tensor.strides(),
        tensor.storage_offset() + slice.first * tensor.stride(lead - 1));
  }
  std::vector<at::Tensor> pieces;
  const auto sizes = tensor.sizes();
  const int64_t inner = sizes[lead - 1];
  for (int64_t first = slice.first; first < slice.first + slice.count;) {
    const int64_t end = std::min((first / inner + 1) * inner, slice.first + slice.count);
    pieces.push_back(cut_within(tensor, sizes, lead, {first, end - first}));
    first = end;
  }
  return pieces.size() == 1 ? pieces[0] : at::cat(pieces, lead - 1);
}

at::Tensor cut_whole(const at::Tensor& tensor, const CutTensor& cut, const Slice& slice) {
  return cut.complete ? cut_rows(tensor, cut.cut.lead, slice)
                      : cut_within(tensor, cut.cut.rows, cut.cut.lead, slice);
}

}  // namespace retape::detail
