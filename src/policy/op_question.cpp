#include "policy/op_question.h"

#include "tape/each_tensor.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

namespace retape::detail {

namespace {

using Tensors = std::vector<const c10::TensorImpl*>;

// A result as torch's dispatch modes see it, which run below autograd: it has no graph yet. What the
// op returns of its arguments (in place, out=) is the argument itself.
at::Tensor below_autograd(const at::Tensor& tensor, const Tensors& args) {
  const bool given = std::find(args.begin(), args.end(), tensor.unsafeGetTensorImpl()) != args.end();
  return tensor.defined() && tensor.requires_grad() && !given ? tensor.detach() : tensor;
}

c10::IValue below_autograd(const c10::IValue& value, const Tensors& args) {
  if (value.isTensor()) {
    return below_autograd(value.toTensor(), args);
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      tensors.push_back(below_autograd(tensor, args));
    }
    return tensors;
  }
  return value;
}

}  // namespace

Decision OpQuestion::ask(const std::string& region, const torch::jit::Stack& stack) const {
  Tensors given;
  for (const auto& arg : args_) {
    each_tensor(arg, [&](const at::Tensor& tensor, int) { given.push_back(tensor.unsafeGetTensorImpl()); });
  }
  std::vector<c10::IValue> outputs;
  for (const auto& result : torch::jit::last(stack, info_.returns)) {
    outputs.push_back(below_autograd(result, given));
  }
  at::AutoDispatchBelowADInplaceOrView unrecorded;
  return (*decide_)({info_.handle, args_, outputs, region});
}

}  // namespace retape::detail
