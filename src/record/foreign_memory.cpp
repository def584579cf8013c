#include "record/foreign_memory.h"

#include <algorithm>

namespace retape::detail {

AddressRange AddressRange::of(const c10::StorageImpl& storage) {
  auto& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  const auto begin = reinterpret_cast<uintptr_t>(data.get());
  return begin == 0 ? AddressRange() : AddressRange{begin, begin + storage.nbytes()};
}

void ForeignMemory::add(const c10::Storage& storage) {
  const auto range = AddressRange::of(*storage.unsafeGetStorageImpl());
  const auto [first, last] = known_.equal_range(range.begin);
  const bool is_new = std::none_of(first, last, [&](const auto& entry) {
    return entry.second.storage._unsafe_get_target() == storage.unsafeGetStorageImpl();
  });
  if (is_new) {
    known_.emplace(range.begin, Known{range.end, storage.getWeakStorageImpl()});
    longest_ = std::max(longest_, range.end - range.begin);
  }
}

std::vector<c10::Storage> ForeignMemory::overlapping(const c10::StorageImpl& storage) const {
  std::vector<c10::Storage> found;
  const auto range = AddressRange::of(storage);
  const auto from = range.begin > longest_ ? range.begin - longest_ : 0;
  for (auto it = known_.lower_bound(from); it != known_.end() && it->first < range.end; ++it) {
    if (it->second.end > range.begin) {
      if (auto other = it->second.storage.lock(); other && other.get() != &storage) {
        found.emplace_back(std::move(other));
      }
    }
  }
  return found;
}

void ForeignMemory::sweep() {
  for (auto it = known_.begin(); it != known_.end();) {
    it = it->second.storage.expired() ? known_.erase(it) : std::next(it);
  }
}

void ForeignMemory::clear() {
  known_.clear();
  longest_ = 0;
}

}  // namespace retape::detail
