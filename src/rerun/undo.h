// Undo: tensors from outside that a second run writes (running statistics, static caches, counters)
// are put back as they were, so that no side effect of forward happens twice.
#pragma once

#include "rerun/insiders.h"

#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <vector>

namespace retape::detail {

class Undo {
 public:
  Undo() = default;
  ~Undo();
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;

  void before(const OpInfo& op, const torch::jit::Stack& stack);  // copies what it will write
  void after(const OpInfo& op, const torch::jit::Stack& stack);   // what it made is not from outside

  // It will be put back: who wants it as it is now needs a copy.
  bool holds(const at::Tensor& tensor) const;

 private:
  struct Written {
    c10::Storage storage;
    c10::Storage copy;
    c10::VariableVersion counter;
    uint32_t version;
  };

  void save(const at::Tensor& tensor);

  std::vector<Written> written_;
  Insiders insiders_;
};

}  // namespace retape::detail
