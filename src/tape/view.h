// View: how an op or autograd sees a value. Costs nothing, is never replayed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

namespace retape::detail {

// A dense tensor of a known kind, whose bytes are all in its storage. Everything else (subclasses,
// sparse, nested, quantized, meta, inference and named tensors) is left to plain autograd.
bool is_plain(const at::Tensor& tensor);

// Neither plain nor a leaf of the dispatcher: a wrapper whose handler calls ops on plain tensors.
bool is_wrapper(const at::Tensor& tensor);

// Its sizes; none where they are not numbers (nested tensors).
c10::IntArrayRef sizes_of(const at::Tensor& tensor);

class View {
 public:
  View() = default;
  explicit View(const at::Tensor& tensor);  // of a plain tensor

  at::Tensor on(c10::Storage storage) const;

  // Every byte of a storage of `nbytes` is one element of the view, so a full write leaves none.
  bool covers(size_t nbytes) const;

  c10::IntArrayRef sizes() const { return {shape_.data(), shape_.size() / 2}; }
  c10::IntArrayRef strides() const {
    return {shape_.data() + shape_.size() / 2, shape_.size() / 2};
  }
  c10::ScalarType dtype() const { return dtype_.toScalarType(); }
  bool requires_grad() const { return requires_grad_; }

 private:
  c10::SmallVector<int64_t, 8> shape_;  // sizes, then strides
  int64_t offset_ = 0;
  caffe2::TypeMeta dtype_;
  c10::DispatchKeySet keys_;
  bool dense_ = false;  // no element overlaps another, no gaps
  bool wrapped_number_ = false;
  bool requires_grad_ = false;
};

}  // namespace retape::detail
