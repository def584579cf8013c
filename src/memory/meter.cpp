#include <retape/memory.h>

#include "memory/counting_allocator.h"
#include "memory/op_names.h"
#include "memory/phase.h"

#include <atomic>
#include <mutex>
#include <optional>

namespace retape {

// Counts what the allocator reports. Events may come from any thread.
struct MemoryMeter::Impl final : detail::AllocationObserver {
  explicit Impl(MeterOptions options) : options(options) {
    if (options.timeline) {
      names.emplace();
    }
  }

  void allocated(const detail::Allocation& allocation) override {
    count(allocation, static_cast<int64_t>(allocation.bytes));
  }

  void freed(const detail::Allocation& allocation) override {
    count(allocation, -static_cast<int64_t>(allocation.bytes));
  }

  void count(const detail::Allocation& allocation, int64_t bytes) {
    const auto phase = detail::current_phase();
    std::lock_guard<std::mutex> lock(mutex);
    if (phase == Phase::Forward) {
      in_backward = false;
    } else if (!in_backward) {
      in_backward = true;
      held = current;
    }
    current += bytes;
    peak = std::max(peak, current);
    if (options.timeline) {
      events.push_back({bytes, current, allocation.id, phase, detail::current_op_name()});
    }
  }

  const MeterOptions options;
  std::optional<detail::OpNames> names;
  mutable std::mutex mutex;
  int64_t current = 0;
  int64_t peak = 0;
  std::optional<int64_t> held;
  bool in_backward = false;
  std::vector<MemoryEvent> events;
};

MemoryMeter::MemoryMeter(MeterOptions options) : impl_(std::make_shared<Impl>(options)) {
  detail::observe_allocations(impl_);
}

MemoryMeter::~MemoryMeter() {
  close();
}

void MemoryMeter::close() {
  detail::stop_observing(impl_);
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->names.reset();
}

int64_t MemoryMeter::current() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->current;
}

int64_t MemoryMeter::peak() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->peak;
}

int64_t MemoryMeter::held() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->held.value_or(impl_->current);
}

void MemoryMeter::reset_peak() {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->peak = impl_->current;
}

std::vector<MemoryEvent> MemoryMeter::timeline() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->events;
}

}  // namespace retape
