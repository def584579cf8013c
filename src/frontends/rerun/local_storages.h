// Insiders: storages that ops of a function have made. What a function touches besides them, and
// was not given, is from outside: buffers, caches, counters.
#pragma once

#include "tape/op_info.h"

#include <ATen/core/stack.h>
#include <c10/util/flat_hash_map.h>

namespace retape::detail {

class Insiders {
 public:
  void after(const OpInfo& op, const torch::jit::Stack& stack);
  bool contains(const at::Tensor& tensor) const;

 private:
  ska::flat_hash_set<const c10::StorageImpl*> storages_;
};

}  // namespace retape::detail
