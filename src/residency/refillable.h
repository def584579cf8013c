// Storages whose bytes were taken away and come back in place when somebody asks for them.
//
// Who takes them away registers here, so that whatever is about to read a storage can have it
// filled without knowing why it was empty. Threads: any.
#pragma once

#include "torch/interceptor.h"

#include <c10/core/Storage.h>

namespace retape::detail {

class RefillableStorages {
 public:
  virtual bool is_emptied(const c10::StorageImpl* storage) = 0;
  virtual void fill(const c10::Storage& storage) = 0;

 protected:
  ~RefillableStorages() = default;
};

// Once, before there are any; lives as long as the process.
void register_refillable_storages(RefillableStorages& storages);

// There are some, anywhere in the process, that are emptied or may be.
inline bool any_refillable() {
  return is_intercepting_everywhere();
}
void set_any_refillable(bool any);

bool is_emptied(const c10::StorageImpl* storage);

// Brings the bytes back, if they were taken away. Takes tapes' locks: not to be called under one.
void fill(const c10::Storage& storage);

}  // namespace retape::detail
