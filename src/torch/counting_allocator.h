// The CPU allocator that tells observers of every allocation and free. In place of torch's own
// only while somebody observes; what it has handed out by then frees itself correctly later.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace retape::detail {

struct Allocation {
  size_t bytes;
  uint64_t id;  // in the order of allocation
};

class AllocationObserver {
 public:
  virtual ~AllocationObserver();
  virtual void allocated(const Allocation& allocation) = 0;
  // Only of what was allocated while it observed.
  virtual void freed(const Allocation& allocation) = 0;
  // An op returns a tensor that shows it.
  virtual void returned(const Allocation& allocation, const at::Tensor& tensor);

 private:
  friend class Observers;
  uint64_t since_ = 0;
};

void observe_allocations(std::shared_ptr<AllocationObserver> observer);
void stop_observing(const std::shared_ptr<AllocationObserver>& observer);  // idempotent

void tell_returned(const at::Tensor& tensor);  // with storage; nothing is told if nobody knows it

// While it lives, what its thread allocates is told to nobody.
class Uncounted {
 public:
  Uncounted();
  ~Uncounted();
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;

 private:
  const bool before_;
};

}  // namespace retape::detail
