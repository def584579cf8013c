// GivenWrites: when a scope last saw a write to a storage that it had been given.
//
// A version counter shows a write to every tape that watches it, but handlers of dispatch modes and
// running statistics move none, and `.data` moves one that others do not watch. The tape of the
// scope that sees such a write accounts for it at once; tapes of scopes that have closed, in any
// thread, learn of it here before they replay from that storage. Writes outside of every scope stay
// unseen (docs/limits.md).
#pragma once

#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstdint>

namespace retape::detail {

class GivenWrites {
 public:
  using Time = uint64_t;  // counts these writes, in the whole process

  static Time now() { return clock_.load(std::memory_order_acquire); }
  static void note(const c10::weak_intrusive_ptr<c10::StorageImpl>& storage);

  // Any thread. Costs one load where there was no write at all since.
  static bool since(Time time, const c10::StorageImpl* storage) {
    return now() != time && find(storage) > time;
  }

 private:
  static Time find(const c10::StorageImpl* storage);  // of the last one; 0: none

  static std::atomic<Time> clock_;
};

}  // namespace retape::detail
