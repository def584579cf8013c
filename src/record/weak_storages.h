// WeakStorages: a table by storage that holds none of them and forgets those that are gone.
//
// The weak reference keeps the address of a storage from being given to another one, so a key that
// is found is the storage that was meant.
#pragma once

#include <c10/core/Storage.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <iterator>

namespace retape::detail {

template <typename Entry>
class WeakStorages {
 public:
  bool empty() const { return entries_.empty(); }

  Entry* find(const c10::StorageImpl* storage) {
    const auto it = entries_.find(storage);
    return it == entries_.end() || it->second.storage.expired() ? nullptr : &it->second.entry;
  }

  template <typename Test>
  bool any_of(Test&& test) const {
    return std::any_of(entries_.begin(), entries_.end(), [&](const auto& known) {
      const auto storage = known.second.storage.lock();
      return storage && test(*storage);
    });
  }

  Entry& operator[](const c10::Storage& storage) {
    if (entries_.size() >= sweep_at_) {
      sweep();
    }
    auto& known = entries_[storage.unsafeGetStorageImpl()];
    if (known.storage.expired()) {
      known = Known{storage.getWeakStorageImpl(), Entry()};
    }
    return known.entry;
  }

  void clear() {
    entries_.clear();
    sweep_at_ = kSweepAt;
  }

 private:
  static constexpr size_t kSweepAt = 64;  // small tables stay in cache

  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
    Entry entry{};
  };

  void sweep() {
    for (auto it = entries_.begin(); it != entries_.end();) {
      it = it->second.storage.expired() ? entries_.erase(it) : std::next(it);
    }
    sweep_at_ = std::max(kSweepAt, 2 * entries_.size());
  }

  ska::flat_hash_map<const c10::StorageImpl*, Known> entries_;
  size_t sweep_at_ = kSweepAt;
};

}  // namespace retape::detail
