#include "residency/given_writes.h"

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace retape::detail {

namespace {

struct Written {
  // Keeps the address from being given to another storage while the entry is there.
  c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
  GivenWrites::Time time = 0;
};

struct Table {
  std::mutex mutex;
  ska::flat_hash_map<const c10::StorageImpl*, Written> written;
  size_t sweep_at = 64;

  void sweep() {
    for (auto it = written.begin(); it != written.end();) {
      it = it->second.storage.expired() ? written.erase(it) : std::next(it);
    }
    sweep_at = std::max<size_t>(64, 2 * written.size());
  }
};

// Never destroyed: graphs may outlive static objects.
Table& table() {
  static auto& instance = *new Table;
  return instance;
}

}  // namespace

std::atomic<GivenWrites::Time> GivenWrites::clock_{0};

void GivenWrites::note(const c10::weak_intrusive_ptr<c10::StorageImpl>& storage) {
  auto& known = table();
  std::lock_guard<std::mutex> lock(known.mutex);
  const Time time = clock_.load(std::memory_order_relaxed) + 1;
  known.written[storage._unsafe_get_target()] = Written{storage, time};
  clock_.store(time, std::memory_order_release);
  if (known.written.size() > known.sweep_at) {
    known.sweep();
  }
}

GivenWrites::Time GivenWrites::find(const c10::StorageImpl* storage) {
  auto& known = table();
  std::lock_guard<std::mutex> lock(known.mutex);
  const auto it = known.written.find(storage);
  return it == known.written.end() ? 0 : it->second.time;
}

}  // namespace retape::detail
