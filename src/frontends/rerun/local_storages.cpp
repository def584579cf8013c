#include "frontends/rerun/local_storages.h"

#include "tape/each_tensor.h"

namespace retape::detail {

void Insiders::after(const OpInfo& op, const torch::jit::Stack& stack) {
  if (op.is_view || !op.writes.empty()) {
    return;  // it returns what it was given
  }
  for (const auto& result : torch::jit::last(stack, op.returns)) {
    each_tensor(result, [&](const at::Tensor& tensor, int) {
      if (tensor.defined() && tensor.has_storage()) {
        storages_.insert(tensor.storage().unsafeGetStorageImpl());
      }
    });
  }
}

bool Insiders::contains(const at::Tensor& tensor) const {
  return tensor.has_storage() && storages_.count(tensor.storage().unsafeGetStorageImpl()) != 0;
}

}  // namespace retape::detail
