#include "tape/view.h"

#include <c10/core/TensorImpl.h>
#include <c10/util/accumulate.h>

namespace retape::detail {

using c10::DispatchKey;
using c10::DispatchKeySet;

namespace {

constexpr uint64_t kBackendBits = c10::full_backend_mask;

constexpr DispatchKeySet kPlainKeys = DispatchKeySet({
                                          DispatchKey::Dense,
                                          DispatchKey::Conjugate,
                                          DispatchKey::Negative,
                                      }) |
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

constexpr DispatchKeySet kWrapperKeys = DispatchKeySet({
    DispatchKey::Python,
    DispatchKey::PythonTLSSnapshot,
    DispatchKey::FuncTorchBatched,
    DispatchKey::FuncTorchGradWrapper,
    DispatchKey::Functionalize,
});

}  // namespace

bool is_plain(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  const uint64_t others = impl->key_set().raw_repr() & ~(kPlainKeys.raw_repr() | kBackendBits);
  return others == 0 && impl->has_storage() && !tensor.is_inference() && !impl->is_meta();
}

bool is_wrapper(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->key_set().has_any(kWrapperKeys);
}

c10::IntArrayRef sizes_of(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  return tensor.is_nested() || impl->has_symbolic_sizes_strides() ? c10::IntArrayRef()
                                                                  : impl->sizes();
}

View::View(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  const auto sizes = impl->sizes();
  const auto strides = impl->strides();
  shape_.append(sizes.begin(), sizes.end());
  shape_.append(strides.begin(), strides.end());
  offset_ = impl->storage_offset();
  dtype_ = impl->dtype();
  keys_ = impl->key_set() - c10::autograd_dispatch_keyset_with_ADInplaceOrView -
      c10::autocast_dispatch_keyset;
  dense_ = impl->is_non_overlapping_and_dense();
  wrapped_number_ = impl->is_wrapped_number();
  requires_grad_ = impl->requires_grad();
}

at::Tensor View::on(c10::Storage storage) const {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys_, dtype_);
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(sizes(), strides(), offset_);
  if (wrapped_number_) {
    impl->set_wrapped_number(true);
  }
  return tensor;
}

bool View::covers(size_t nbytes) const {
  return dense_ && offset_ == 0 &&
      static_cast<size_t>(c10::multiply_integers(sizes())) * dtype_.itemsize() == nbytes;
}

}  // namespace retape::detail
