#include "backward/rows/program.h"

namespace retape::detail {

void push_arguments(const Step& step, torch::jit::Stack& stack) {
  stack.assign(step.args.begin(), step.args.end());
  for (const auto& list : step.lists) {
    if (list.optional) {
      c10::List<std::optional<at::Tensor>> tensors;
      tensors.resize(list.size);
      stack[list.arg] = std::move(tensors);
    } else {
      c10::List<at::Tensor> tensors;
      tensors.resize(list.size);
      stack[list.arg] = std::move(tensors);
    }
  }
}

void put_tensor(torch::jit::Stack& stack, const Read& read, at::Tensor tensor) {
  auto& arg = stack[read.arg];
  if (read.element < 0) {
    arg = std::move(tensor);
  } else if (arg.isOptionalTensorList()) {
    arg.toOptionalTensorList().set(read.element, std::move(tensor));
  } else {
    arg.toTensorList().set(read.element, std::move(tensor));
  }
}

}  // namespace retape::detail
