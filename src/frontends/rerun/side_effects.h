// Outside: tensors from outside that a run of a function writes (running statistics, power
// iterations, static caches, counters), as they were before it wrote them.
//
// The second run finds them as the first did, and leaves them as it found them: no side effect of
// forward happens twice.
#pragma once

#include "frontends/rerun/local_storages.h"

#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <limits>
#include <vector>

namespace retape::detail {

class Outside {
 public:
  // Larger ones are not copied. A first run copies small ones: a cache is not worth its memory
  // twice, and if the function reads what it overwrites there, digests tell.
  explicit Outside(size_t most_bytes = std::numeric_limits<size_t>::max())
      : most_bytes_(most_bytes) {}
  static constexpr size_t kSmall = 1 << 18;

  void before(const OpInfo& op, const torch::jit::Stack& stack);  // copies what it will write
  void after(const OpInfo& op, const torch::jit::Stack& stack);

  // A copy is held of it: who wants it as it is now needs one too.
  bool holds(const at::Tensor& tensor) const;

  bool made_inside(const at::Tensor& tensor) const { return insiders_.contains(tensor); }

  void put_back() const;                  // contents and versions
  void go_back_to(const Outside& first);  // to what another run found; put_back undoes that

 private:
  struct Written {
    c10::Storage storage;
    c10::Storage copy;
    c10::VariableVersion counter;
    uint32_t version;
    const void* owner = storage.data_ptr().get_context();

    // Its memory may belong to another storage by now: share_memory_ moves it, and what it was
    // moved from goes on naming the address.
    bool owns_its_memory() const {
      return storage.data_ptr().get_context() == owner && storage.nbytes() == copy.nbytes();
    }
  };

  void save(const at::Tensor& tensor);
  const Written* find(const c10::Storage& storage) const;
  static void write(const Written& written);

  size_t most_bytes_;
  std::vector<Written> written_;
  Insiders insiders_;
};

}  // namespace retape::detail
