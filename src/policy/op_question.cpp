#include "policy/op_question.h"

#include "tape/each_tensor.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

namespace retape::detail {

namespace {

// Tensors as torch's dispatch modes see them, which run below autograd: a result has no graph yet,
// and what the op has written gets its graph only after it. Other arguments are what they are.
class BelowAutograd {
 public:
  // `before`: the arguments that required grad before the op ran.
  explicit BelowAutograd(c10::ArrayRef<const c10::TensorImpl*> before) : before_(before) {}

  at::Tensor operator()(const at::Tensor& tensor) const {
    const bool had_grad = std::find(before_.begin(), before_.end(), tensor.unsafeGetTensorImpl()) !=
        before_.end();
    return tensor.defined() && tensor.requires_grad() && !had_grad ? tensor.detach() : tensor;
  }

  c10::IValue operator()(const c10::IValue& value) const {
    if (value.isTensor()) {
      return (*this)(value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> tensors;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        tensors.push_back((*this)(tensor));
      }
      return tensors;
    }
    return value;
  }

 private:
  const c10::ArrayRef<const c10::TensorImpl*> before_;
};

}  // namespace

SelectiveQuestion::SelectiveQuestion(
    const OpPolicyFunction& decide, const OpInfo& info, const torch::jit::Stack& stack)
    : decide_(decide),
      info_(info) {
  const auto args = torch::jit::last(stack, info.arguments);
  args_.assign(args.begin(), args.end());
  for (const auto& arg : args_) {
    each_tensor(arg, [&](const at::Tensor& tensor, int) {
      if (tensor.defined() && tensor.requires_grad()) {
        with_grad_.push_back(tensor.unsafeGetTensorImpl());
      }
    });
  }
}

Decision SelectiveQuestion::ask(const std::string& region, const torch::jit::Stack& stack) const {
  const BelowAutograd below(with_grad_);
  auto args = args_;
  for (const auto index : info_.writes) {
    args[index] = below(args[index]);
  }
  std::vector<c10::IValue> outputs;
  for (const auto& result : torch::jit::last(stack, info_.returns)) {
    outputs.push_back(below(result));
  }
  at::AutoDispatchBelowADInplaceOrView unrecorded;
  return decide_({info_.handle, args, outputs, region});
}

}  // namespace retape::detail
