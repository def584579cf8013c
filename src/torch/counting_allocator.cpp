#include "torch/counting_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

namespace retape::detail {

AllocationObserver::~AllocationObserver() = default;

void AllocationObserver::returned(const Allocation&, const at::Tensor&) {}

namespace {

constexpr uint64_t kNobodys = 0;  // older than every observer
thread_local bool uncounted = false;

}  // namespace

Uncounted::Uncounted() : before_(std::exchange(uncounted, true)) {}

Uncounted::~Uncounted() {
  uncounted = before_;
}

// Few observers, short lists: one lock around all of it.
class Observers {
 public:
  static Observers& instance() {
    static auto* observers = new Observers;  // frees come until the process ends
    return *observers;
  }

  void add(std::shared_ptr<AllocationObserver> observer);
  void remove(const std::shared_ptr<AllocationObserver>& observer);

  uint64_t allocated(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    const Allocation allocation{bytes, next_id_++};
    for (const auto& observer : observers_) {
      observer->allocated(allocation);
    }
    return allocation.id;
  }

  void freed(const Allocation& allocation) {
    each_that_knows(allocation, [&](auto& observer) { observer.freed(allocation); });
  }

  void returned(const Allocation& allocation, const at::Tensor& tensor) {
    each_that_knows(allocation, [&](auto& observer) { observer.returned(allocation, tensor); });
  }

 private:
  template <typename Tell>
  void each_that_knows(const Allocation& allocation, const Tell& tell) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& observer : observers_) {
      if (allocation.id >= observer->since_) {
        tell(*observer);
      }
    }
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<AllocationObserver>> observers_;
  uint64_t next_id_ = kNobodys + 1;
  c10::Allocator* before_ = nullptr;
};

namespace {

// Size and id stand in front of the memory, so that freeing needs no table and the data pointer is
// its own context, as copy-on-write and raw deallocation expect.
constexpr size_t kHeader = 64;
static_assert(sizeof(Allocation) <= kHeader);

Allocation header_of(const char* base) {
  Allocation allocation;
  std::memcpy(&allocation, base, sizeof(allocation));
  return allocation;
}

void free_counted(void* data) {
  if (data == nullptr) {
    return;
  }
  auto* base = static_cast<char*>(data) - kHeader;
  Observers::instance().freed(header_of(base));
  c10::free_cpu(base);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto* base = bytes == 0 ? nullptr : static_cast<char*>(c10::alloc_cpu(bytes + kHeader));
    if (base == nullptr) {
      return {nullptr, nullptr, &free_counted, c10::Device(c10::kCPU)};
    }
    const Allocation allocation{
        bytes, uncounted ? kNobodys : Observers::instance().allocated(bytes)};
    std::memcpy(base, &allocation, sizeof(allocation));
    auto* data = base + kHeader;
    return {data, data, &free_counted, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_counted; }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }
};

CountingAllocator& counting_allocator() {
  static auto* allocator = new CountingAllocator;
  return *allocator;
}

constexpr uint8_t kPriority = 255;  // over whatever was set; ours leaves again

}  // namespace

void Observers::add(std::shared_ptr<AllocationObserver> observer) {
  std::lock_guard<std::mutex> lock(mutex_);
  observer->since_ = next_id_;
  if (observers_.empty()) {
    before_ = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&counting_allocator(), kPriority);
  }
  observers_.push_back(std::move(observer));
}

void Observers::remove(const std::shared_ptr<AllocationObserver>& observer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = std::find(observers_.begin(), observers_.end(), observer);
  if (it == observers_.end()) {
    return;
  }
  observers_.erase(it);
  if (observers_.empty()) {
    c10::SetCPUAllocator(before_, kPriority);
  }
}

void observe_allocations(std::shared_ptr<AllocationObserver> observer) {
  Observers::instance().add(std::move(observer));
}

void stop_observing(const std::shared_ptr<AllocationObserver>& observer) {
  Observers::instance().remove(observer);
}

void tell_returned(const at::Tensor& tensor) {
  const auto& memory = tensor.storage().data_ptr();
  if (memory.get_context() != nullptr && memory.get_deleter() == &free_counted) {
    Observers::instance().returned(
        header_of(static_cast<char*>(memory.get_context()) - kHeader), tensor);
  }
}

}  // namespace retape::detail
