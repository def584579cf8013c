// Accumulator: the gradient of a whole tensor, added up slice by slice. Sums are float32, float64
// for float64, and rounded to the tensor's dtype once, at the end.
#pragma once

#include <ATen/core/Tensor.h>

namespace retape::detail {

class Accumulator {
 public:
  // `even`: rows of it will be written, so it is laid out row after row.
  explicit Accumulator(at::Tensor whole, bool even) : whole_(std::move(whole)), even_(even) {}

  at::Tensor& sum();  // made when it is first asked for

  // += left^T right, of n rows each; without a second matrix of the sum's size.
  void add_product(const at::Tensor& left, const at::Tensor& right, int64_t blocks);

  // In the tensor's dtype; undefined if nothing was added. It is then somebody else's.
  at::Tensor take();

 private:
  at::Tensor whole_;
  at::Tensor sum_;
  bool even_;
};

}  // namespace retape::detail
