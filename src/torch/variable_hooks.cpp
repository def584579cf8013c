#include "torch/variable_hooks.h"

#include <ATen/core/VariableHooksInterface.h>

#include <mutex>
#include <utility>

namespace retape::detail {

namespace {

thread_local const at::TensorBase* asked = nullptr;

// Hands everything on.
class VariableFront final : public at::impl::VariableHooksInterface {
 public:
  explicit VariableFront(const at::impl::VariableHooksInterface& behind) : behind_(behind) {}

  bool is_leaf(const at::TensorBase& tensor) const override {
    asked = &tensor;
    return behind_.is_leaf(tensor);
  }

  at::TensorBase tensor_data(const at::TensorBase& tensor) const override {
    return behind_.tensor_data(tensor);
  }
  at::TensorBase variable_data(const at::TensorBase& tensor) const override {
    return behind_.variable_data(tensor);
  }
  const c10::intrusive_ptr<torch::autograd::Node>& grad_fn(
      const at::TensorBase& tensor) const override {
    return behind_.grad_fn(tensor);
  }
  unsigned _register_hook(
      const at::TensorBase& tensor,
      std::function<at::TensorBase(const at::TensorBase&)> hook) const override {
    return behind_._register_hook(tensor, std::move(hook));
  }
  void remove_hook(const at::TensorBase& tensor, unsigned position) const override {
    behind_.remove_hook(tensor, position);
  }
  bool is_view(const at::TensorBase& tensor) const override { return behind_.is_view(tensor); }
  const at::TensorBase& base(const at::TensorBase& tensor) const override {
    return behind_.base(tensor);
  }
  const std::string& name(const at::TensorBase& tensor) const override {
    return behind_.name(tensor);
  }
  int64_t output_nr(const at::TensorBase& tensor) const override {
    return behind_.output_nr(tensor);
  }
  void set_data(const at::TensorBase& tensor, const at::TensorBase& data) const override {
    behind_.set_data(tensor, data);
  }
  at::TensorBase data(const at::TensorBase& tensor) const override { return behind_.data(tensor); }
  int64_t _version(const at::TensorBase& tensor) const override { return behind_._version(tensor); }
  void retain_grad(const at::TensorBase& tensor) const override { behind_.retain_grad(tensor); }
  bool retains_grad(const at::TensorBase& tensor) const override {
    return behind_.retains_grad(tensor);
  }
  void _backward(
      const at::Tensor& tensor,
      at::TensorList inputs,
      const std::optional<at::Tensor>& gradient,
      std::optional<bool> keep_graph,
      bool create_graph) const override {
    behind_._backward(tensor, inputs, gradient, keep_graph, create_graph);
  }
  void requires_grad_(const at::TensorBase& tensor, bool on) const override {
    behind_.requires_grad_(tensor, on);
  }
  void basic_autograd_not_implemented_fallback(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) const override {
    behind_.basic_autograd_not_implemented_fallback(op, keys, stack);
  }
  std::optional<c10::ScalarType> grad_dtype(const at::TensorBase& tensor) const override {
    return behind_.grad_dtype(tensor);
  }
  void set_grad_dtype(
      const at::TensorBase& tensor, const std::optional<c10::ScalarType>& dtype) const override {
    behind_.set_grad_dtype(tensor, dtype);
  }

 private:
  const at::impl::VariableHooksInterface& behind_;
};

}  // namespace

void install_variable_front() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Lives as long as tensors do.
    at::impl::SetVariableHooks(new VariableFront(*at::impl::GetVariableHooks()));
  });
}

const at::Tensor* take_tensor_being_saved() {
  // A saved variable's tensor is an at::Tensor, which is a TensorBase and nothing more.
  return static_cast<const at::Tensor*>(std::exchange(asked, nullptr));
}

}  // namespace retape::detail
