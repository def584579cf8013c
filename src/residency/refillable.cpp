#include "residency/refillable.h"

#include <atomic>

namespace retape::detail {

namespace {

std::atomic<RefillableStorages*> registered{nullptr};

}  // namespace

void register_refillable_storages(RefillableStorages& storages) {
  registered.store(&storages);
}

void set_any_refillable(bool any) {
  intercepting_everywhere.store(any);
}

bool is_emptied(const c10::StorageImpl* storage) {
  return any_refillable() && registered.load()->is_emptied(storage);
}

void fill(const c10::Storage& storage) {
  if (any_refillable()) {
    registered.load()->fill(storage);
  }
}

}  // namespace retape::detail
