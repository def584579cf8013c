#include "rerun/insiders.h"

namespace retape::detail {

void Insiders::after(const OpInfo& op, const torch::jit::Stack& stack) {
  if (op.is_view || !op.writes.empty()) {
    return;  // it returns what it was given
  }
  for (const auto& result : torch::jit::last(stack, op.returns)) {
    if (result.isTensor()) {
      add(result.toTensor());
    } else if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorList()) {
        add(tensor);
      }
    }
  }
}

void Insiders::add(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.has_storage()) {
    storages_.insert(tensor.storage().unsafeGetStorageImpl());
  }
}

bool Insiders::contains(const at::Tensor& tensor) const {
  return tensor.has_storage() && storages_.count(tensor.storage().unsafeGetStorageImpl()) != 0;
}

}  // namespace retape::detail
