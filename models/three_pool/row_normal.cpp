#include <three_pool/row_normal.h>

#include <ATen/Functions.h>

#include <cmath>

namespace three_pool {

at::Tensor row_normal(
    uint64_t seed,
    const std::string& name,
    retape::dist::RowRange rows,
    at::IntArrayRef sizes,
    at::ScalarType dtype) {
  auto pair_sizes = sizes.vec();
  pair_sizes.push_back(2);
  const auto pairs = retape::dist::row_uniform(seed, name, rows, pair_sizes, at::kDouble);
  const auto out = at::empty(pairs.sizes().slice(0, pairs.dim() - 1), at::kDouble);
  const auto* pair = pairs.const_data_ptr<double>();
  auto* element = out.mutable_data_ptr<double>();
  // Box-Muller in scalar code: a vectorised function may round its last elements differently, and
  // which ones are last depends on the number of rows.
  for (int64_t i = 0; i < out.numel(); ++i) {
    element[i] = std::sqrt(-2 * std::log(1 - pair[2 * i])) * std::cos(2 * M_PI * pair[2 * i + 1]);
  }
  return out.to(dtype);
}

}  // namespace three_pool
