#include "check/readable.h"

#include "residency/refillable.h"
#include "tape/view.h"
#include "torch/untracked_guard.h"

#include <retape/error.h>

#include <ATen/ops/to_dense.h>
#include <ATen/ops/zeros_like.h>

namespace retape::detail {

namespace {

const char* unreadable(const at::Tensor& tensor) {
  if (tensor.is_meta()) {
    return "is on the meta device, where there are no bytes";
  }
  if (tensor.is_nested()) {
    return "is a nested tensor";
  }
  if (tensor.is_quantized()) {
    return "is quantized";
  }
  // A subclass that only adds behaviour has its own memory; a wrapper has none.
  const bool empty = tensor.has_storage() && tensor.numel() > 0 &&
      tensor.storage().data() == nullptr;
  if (is_wrapper(tensor) && (!tensor.has_storage() || empty)) {
    return "is a wrapper subclass, whose bytes are in other tensors";
  }
  return empty ? "has no memory at the moment" : nullptr;
}

at::Tensor dense(const at::Tensor& tensor, const std::string& what) {
  if (tensor._is_zerotensor()) {  // zeros without memory: the gradient through sgn
    return at::zeros_like(tensor);
  }
  if (any_refillable() && is_plain(tensor)) {
    fill(tensor.storage());  // it may be the output of an OutputDiscardCheckpoint
  }
  if (const auto* why = unreadable(tensor)) {
    throw UsageError(
        "[verify] " + (what.empty() ? "a tensor" : what) + " " + why +
        ": expected a dense or sparse tensor, to compare its bits. Fix: hand over the dense "
        "tensors that it is "
        "made of, or leave it out.");
  }
  auto result = tensor;
  if (result.layout() != c10::kStrided) {
    result = result.to_dense();
  }
  if (!result.is_cpu()) {
    result = result.cpu();
  }
  return result.resolve_conj().resolve_neg();
}

}  // namespace

at::Tensor readable(const at::Tensor& tensor, const std::string& what) {
  UntrackedGuard untracked;
  return dense(tensor, what).contiguous();
}

at::Tensor frozen(const at::Tensor& tensor, const std::string& what) {
  if (!tensor.defined()) {
    return tensor;
  }
  UntrackedGuard untracked;
  if (tensor.layout() != c10::kStrided && unreadable(tensor) == nullptr) {
    return tensor.clone();  // its layout is compared
  }
  return dense(tensor, what).clone(at::MemoryFormat::Contiguous);
}

}  // namespace retape::detail
