#include "backward/rows/accumulator.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include <algorithm>

namespace retape::detail {

at::Tensor& Accumulator::sum() {
  if (!sum_.defined()) {
    const auto options = whole_.options().dtype(at::toOpMathType(whole_.scalar_type()));
    sum_ = even_ ? at::zeros(whole_.sizes(), options) : at::zeros_like(whole_, options);
  }
  return sum_;
}

void Accumulator::add_product(const at::Tensor& left, const at::Tensor& right, int64_t blocks) {
  // A weight is mostly seen transposed: then so is the product.
  const bool transposed = sum().stride(0) == 1 && sum().size(1) > 1;
  auto to = transposed ? sum().t() : sum();
  const auto& tall = transposed ? right : left;
  const auto& wide = transposed ? left : right;
  if (to.scalar_type() == tall.scalar_type()) {
    to.addmm_(tall.t(), wide);
    return;
  }
  // Products of a narrow dtype, some rows of the sum at a time.
  const int64_t most = std::max<int64_t>(1, (to.size(0) + blocks - 1) / blocks);
  for (int64_t first = 0; first < to.size(0); first += most) {
    const int64_t count = std::min(most, to.size(0) - first);
    to.narrow(0, first, count).add_(at::mm(tall.narrow(1, first, count).t(), wide));
  }
}

at::Tensor Accumulator::take() {
  if (!sum_.defined()) {
    return {};
  }
  const auto dtype = whole_.scalar_type();
  whole_.reset();
  auto sum = std::move(sum_);
  return sum.scalar_type() == dtype ? sum : sum.to(dtype);
}

}  // namespace retape::detail
