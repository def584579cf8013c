#include "check/elements.h"
#include "check/readable.h"
#include "tape/shape_text.h"
#include "torch/untracked_guard.h"

#include <retape/compare.h>

#include <cstring>

namespace retape {

namespace {

std::string index_text(int64_t flat, c10::IntArrayRef sizes) {
  std::string text;
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    text = std::to_string(flat % *size) + (text.empty() ? "" : ", ") + text;
    flat /= *size;
  }
  return "[" + text + "]";
}

// They are not even of the same kind.
Difference other_shape(const at::Tensor& plain, const at::Tensor& recomputed) {
  Difference difference;
  const auto& larger = plain.defined() ? plain : recomputed;
  difference.elements = larger.is_nested() ? 0 : static_cast<uint64_t>(larger.numel());
  difference.differing = difference.elements;
  difference.plain = detail::shape_text(plain);
  difference.recomputed = detail::shape_text(recomputed);
  return difference;
}

}  // namespace

std::optional<Difference> compare(
    const at::Tensor& plain,
    const at::Tensor& recomputed,
    const std::map<c10::ScalarType, Tolerance>& tolerance) {
  if (!plain.defined() && !recomputed.defined()) {
    return std::nullopt;
  }
  if (detail::shape_text(plain) != detail::shape_text(recomputed)) {
    return other_shape(plain, recomputed);
  }
  const auto a = detail::readable(plain, "");
  const auto b = detail::readable(recomputed, "");
  const auto* x = a.const_data_ptr();
  const auto* y = b.const_data_ptr();
  if (a.numel() == 0 || std::memcmp(x, y, a.nbytes()) == 0) {
    return std::nullopt;
  }
  const auto dtype = a.scalar_type();
  const auto allowed = tolerance.find(dtype);
  const auto counted = detail::count_differing(
      dtype, x, y, a.numel(), allowed == tolerance.end() ? nullptr : &allowed->second);
  if (counted.differing == 0) {
    return std::nullopt;
  }
  Difference difference;
  difference.differing = counted.differing;
  difference.elements = static_cast<uint64_t>(a.numel());
  difference.ulps = counted.ulps;
  difference.first = index_text(counted.first, a.sizes());
  difference.plain = detail::element_text(dtype, x, counted.first);
  difference.recomputed = detail::element_text(dtype, y, counted.first);
  return difference;
}

}  // namespace retape
