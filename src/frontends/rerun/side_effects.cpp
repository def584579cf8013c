#include "frontends/rerun/side_effects.h"

#include "residency/bytes.h"
#include "tape/each_tensor.h"
#include "tape/view.h"

#include <c10/core/Allocator.h>

namespace retape::detail {

void Outside::before(const OpInfo& op, const torch::jit::Stack& stack) {
  const auto args = torch::jit::last(stack, op.arguments);
  for (const auto* list : {&op.writes, &op.scratch}) {
    for (const auto index : *list) {
      each_tensor(args[index], [&](const at::Tensor& tensor, int) { save(tensor); });
    }
  }
}

void Outside::after(const OpInfo& op, const torch::jit::Stack& stack) {
  insiders_.after(op, stack);
}

void Outside::save(const at::Tensor& tensor) {
  if (!tensor.defined() || !is_plain(tensor) || holds(tensor) || insiders_.contains(tensor)) {
    return;
  }
  const auto& storage = tensor.storage();
  if (storage.nbytes() <= most_bytes_) {
    const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
    written_.push_back({storage, copy_of(storage), counter, counter.current_version()});
  }
}

const Outside::Written* Outside::find(const c10::Storage& storage) const {
  for (const auto& written : written_) {
    if (written.storage.is_alias_of(storage)) {
      return &written;
    }
  }
  return nullptr;
}

bool Outside::holds(const at::Tensor& tensor) const {
  return tensor.has_storage() && find(tensor.storage()) != nullptr;
}

void Outside::write(const Written& written) {
  if (written.owns_its_memory()) {
    c10::GetAllocator(written.storage.device_type())
        ->copy_data(written.storage.mutable_data(), written.copy.data(), written.copy.nbytes());
  }
}

void Outside::put_back() const {
  for (const auto& written : written_) {
    write(written);
    // What was saved of it elsewhere has not changed.
    if (written.counter.enabled()) {
      c10::VariableVersion(written.counter).set_version(written.version);
    }
  }
}

void Outside::go_back_to(const Outside& first) {
  for (const auto& written : first.written_) {
    if (written.owns_its_memory() && find(written.storage) == nullptr) {
      written_.push_back(
          {written.storage,
           copy_of(written.storage),
           written.counter,
           written.counter.enabled() ? written.counter.current_version() : 0});
    }
    write(written);
  }
}

}  // namespace retape::detail
