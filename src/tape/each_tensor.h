// The tensors inside an argument or result of an op.
#pragma once

#include <ATen/core/ivalue.h>

namespace retape::detail {

// Calls `visit(tensor, element)` for each of them; element -1: not in a list. Some may be
// undefined.
template <typename Visit>
void each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    visit(value.toTensor(), -1);
  } else if (value.isTensorList()) {
    int i = 0;
    for (const at::Tensor& tensor : value.toTensorList()) {
      visit(tensor, i++);
    }
  } else if (value.isOptionalTensorList()) {
    int i = 0;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      if (tensor.has_value()) {
        visit(*tensor, i);
      }
      ++i;
    }
  }
}

}  // namespace retape::detail
