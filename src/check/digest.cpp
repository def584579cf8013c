#include "check/digest.h"

#include "tape/view.h"
#include "torch/untracked_guard.h"

#include <retape/dry_run.h>

#include <ATen/ops/from_blob.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <sstream>

namespace retape::detail {

Digest::Digest(const at::Tensor& tensor, bool bits)
    : sizes_(sizes_of(tensor)),
      dtype_(tensor.scalar_type()),
      device_(tensor.device()) {
  bits_ = bits && !DryRun::is_on() && is_plain(tensor) && tensor.is_cpu() && !tensor.is_conj() &&
      !tensor.is_neg();
  if (!bits_ || tensor.numel() == 0) {
    return;
  }
  UntrackedGuard untracked;
  const auto dense = tensor.is_contiguous() ? tensor : tensor.contiguous();
  const auto* bytes = static_cast<const char*>(dense.const_data_ptr());
  hash_ = XXH3_64bits(bytes, dense.nbytes());
  const auto size = static_cast<int64_t>(dense.itemsize());
  const int64_t last = dense.numel() - 1;
  for (int i = 0; i < kSamples; ++i) {
    where_[i] = last * i / (kSamples - 1);
    std::memcpy(samples_[i].data(), bytes + where_[i] * size, size);
  }
}

bool Digest::operator==(const Digest& other) const {
  return sizes_ == other.sizes_ && dtype_ == other.dtype_ && device_ == other.device_ &&
      (!bits_ || !other.bits_ || hash_ == other.hash_);
}

std::string Digest::shape() const {
  std::ostringstream text;
  text << c10::toString(dtype_) << " " << c10::IntArrayRef(sizes_);
  if (!device_.is_cpu()) {
    text << " on " << device_;
  }
  return text.str();
}

std::string Digest::text_of(const Element& element) const {
  UntrackedGuard untracked;
  auto copy = element;
  const auto value = at::from_blob(copy.data(), {}, at::TensorOptions(dtype_)).item();
  std::ostringstream text;
  text.precision(9);
  if (value.isComplex()) {
    text << value.toComplexDouble();
  } else {
    text << value.toDouble();
  }
  return text.str();
}

std::string Digest::difference(const Digest& now) const {
  std::ostringstream text;
  if (shape() != now.shape()) {
    text << "it was " << shape() << " and is now " << now.shape();
    return text.str();
  }
  for (int i = 0; i < kSamples; ++i) {
    if (samples_[i] != now.samples_[i]) {
      text << "element " << where_[i] << " was " << text_of(samples_[i]) << " and is now "
           << text_of(now.samples_[i]);
      return text.str();
    }
  }
  text << std::hex << "its bits had the hash " << hash_ << " and have now " << now.hash_;
  return text.str();
}

}  // namespace retape::detail
