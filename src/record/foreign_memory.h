// ForeignMemory: storages on memory that they do not own (from_numpy, from_dlpack, from_blob).
//
// Such a storage may lie on the bytes of another one that torch does not connect with it. A write
// to either is a write to both, so the recorder asks here which known storages overlap.
#pragma once

#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <map>
#include <vector>

namespace retape::detail {

struct AddressRange {
  uintptr_t begin = 0;
  uintptr_t end = 0;

  static AddressRange of(const c10::StorageImpl& storage);
  bool overlaps(const AddressRange& other) const { return begin < other.end && other.begin < end; }
};

class ForeignMemory {
 public:
  // Allocated by nobody that torch knows, so that something else may know its address.
  static bool holds(const c10::Storage& storage) { return storage.allocator() == nullptr; }

  bool empty() const { return known_.empty(); }
  void add(const c10::Storage& storage);
  std::vector<c10::Storage> overlapping(
      const c10::StorageImpl& storage) const;  // others than itself
  void sweep();                                // forgets those that are gone
  void clear();

 private:
  struct Known {
    uintptr_t end;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  };
  std::multimap<uintptr_t, Known> known_;  // by first address
  uintptr_t longest_ = 0;
};

}  // namespace retape::detail
