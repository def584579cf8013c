#include "rerun/undo.h"

#include "record/view.h"

#include <c10/core/Allocator.h>

#include <algorithm>

namespace retape::detail {

Undo::~Undo() {
  for (const auto& written : written_) {
    if (written.storage.nbytes() == written.copy.nbytes()) {
      c10::GetAllocator(written.storage.device_type())
          ->copy_data(written.storage.mutable_data(), written.copy.data(), written.copy.nbytes());
    }
    // What was saved of it elsewhere has not changed.
    if (written.counter.enabled()) {
      c10::VariableVersion(written.counter).set_version(written.version);
    }
  }
}

void Undo::before(const OpInfo& op, const torch::jit::Stack& stack) {
  const auto args = torch::jit::last(stack, op.arguments);
  for (const auto* list : {&op.writes, &op.scratch}) {
    for (const auto index : *list) {
      const auto& arg = args[index];
      if (arg.isTensor()) {
        save(arg.toTensor());
      } else if (arg.isTensorList()) {
        for (const at::Tensor& tensor : arg.toTensorList()) {
          save(tensor);
        }
      }
    }
  }
}

void Undo::save(const at::Tensor& tensor) {
  if (!tensor.defined() || !is_plain(tensor) || holds(tensor) || insiders_.contains(tensor)) {
    return;
  }
  const auto& storage = tensor.storage();
  const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
  written_.push_back({storage, copy_of(storage), counter, counter.current_version()});
}

void Undo::after(const OpInfo& op, const torch::jit::Stack& stack) {
  insiders_.after(op, stack);
}

bool Undo::holds(const at::Tensor& tensor) const {
  return tensor.has_storage() &&
      std::any_of(written_.begin(), written_.end(), [&](const Written& written) {
           return written.storage.is_alias_of(tensor.storage());
         });
}

}  // namespace retape::detail
