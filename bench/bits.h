// Are gradients those of plain, bit for bit, and is that a proof?
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

namespace retape::bench {

// From the best to the worst. kZero: equal, and no proof, since every gradient is zero, plain's
// too.
enum class Bits { kSame, kZero, kRounded, kDifferent };

inline bool same_bits(const at::Tensor& left, const at::Tensor& right) {
  return left.nbytes() == right.nbytes() &&
      std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

// Of the largest element, as in python/retape/bench/measure.py: some units in the last place.
inline double tolerance(at::ScalarType dtype) {
  const float ulp = dtype == at::kBFloat16
      ? static_cast<float>(std::numeric_limits<at::BFloat16>::epsilon())
      : std::numeric_limits<float>::epsilon();
  return std::max(1e-3, 4.0 * static_cast<double>(ulp));
}

// False for NaN.
inline bool is_close(const at::Tensor& got, const at::Tensor& plain) {
  const auto expected = plain.to(at::kDouble);
  const auto most = tolerance(plain.scalar_type()) * expected.abs().max().item<double>();
  return (got.to(at::kDouble) - expected).abs().max().item<double>() <= most;
}

inline bool all_zero(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const auto& each) {
    return !each.any().template item<bool>();
  });
}

// The worst of them.
inline Bits compare(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& plain) {
  auto worst = Bits::kSame;
  for (size_t i = 0; i < plain.size(); ++i) {
    if (!same_bits(got[i], plain[i])) {
      worst = std::max(worst, is_close(got[i], plain[i]) ? Bits::kRounded : Bits::kDifferent);
    }
  }
  return worst != Bits::kDifferent && all_zero(got) && all_zero(plain) ? Bits::kZero : worst;
}

}  // namespace retape::bench
