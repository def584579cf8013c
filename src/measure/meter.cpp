#include <retape/error.h>
#include <retape/memory.h>

#include "measure/node_regions.h"
#include "measure/phase.h"
#include "measure/running_ops.h"
#include "tape/shape_text.h"
#include "torch/counting_allocator.h"
#include "torch/device_allocator.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace retape {

// Counts what the allocator reports. Events may come from any thread.
struct MemoryMeter::Impl final : detail::AllocationObserver {
  explicit Impl(MeterOptions options) : options(options) {
    if (options.timeline) {
      ops.emplace();
    }
  }

  bool on_cpu() const { return options.device.is_cpu(); }

  // A device's allocator counts by itself; its numbers are taken over when somebody asks.
  void read_device() {
    if (on_cpu() || closed) {
      return;
    }
    const auto now = detail::device_memory(options.device);
    std::lock_guard<std::mutex> lock(mutex);
    current = now.current - zero;
    peak = now.peak - zero;
  }

  void allocated(const detail::Allocation& allocation) override {
    count(allocation, static_cast<int64_t>(allocation.bytes));
  }

  void freed(const detail::Allocation& allocation) override {
    count(allocation, -static_cast<int64_t>(allocation.bytes));
  }

  // Other threads of a kernel, and those of a transport (Gloo's), do not know what they run for:
  // they go on with what was last.
  Phase phase_of_this_thread() const {
    const bool helps = at::in_parallel_region() && at::get_thread_num() != 0;
    return helps || !detail::trains_here() ? last : detail::current_phase();
  }

  void count(const detail::Allocation& allocation, int64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto phase = last = phase_of_this_thread();
    if (phase == Phase::Forward) {
      in_backward = false;
    } else if (!in_backward) {
      in_backward = true;
      held = current;
    }
    current += bytes;
    peak = std::max(peak, current);
    if (options.timeline) {
      if (bytes > 0) {
        born[allocation.id] = events.size();
      } else {
        born.erase(allocation.id);
      }
      auto region = detail::current_region();
      const bool makes_nodes = phase == Phase::Forward ||
          (phase == Phase::Replay && !detail::is_replaying());
      if (makes_nodes && bytes > 0) {
        regions.note(region);
      } else if (phase == Phase::Backward && region.empty()) {
        region = regions.of_current_node();
      }
      events.push_back(
          {bytes, current, allocation.id, phase, detail::current_op_name(), std::move(region), {}});
    }
  }

  void returned(const detail::Allocation& allocation, const at::Tensor& tensor) override {
    std::lock_guard<std::mutex> lock(mutex);
    const auto event = born.find(allocation.id);
    if (event != born.end() && events[event->second].shape.empty()) {
      events[event->second].shape = detail::shape_text(tensor);
    }
  }

  const MeterOptions options;
  std::optional<detail::RunningOps> ops;
  mutable std::mutex mutex;
  int64_t current = 0;
  int64_t peak = 0;
  std::optional<int64_t> held;
  bool in_backward = false;
  Phase last = Phase::Forward;
  std::vector<MemoryEvent> events;
  detail::RegionsOfNodes regions;
  std::unordered_map<uint64_t, size_t> born;  // of what is live: the event of its allocation
  int64_t zero = 0;                           // of a device's allocator when the meter was opened
  bool closed = false;                        // of a device: its numbers stand still
};

MemoryMeter::MemoryMeter(MeterOptions options) : impl_(std::make_shared<Impl>(options)) {
  detail::note_training_thread();
  if (impl_->on_cpu()) {
    detail::observe_allocations(impl_);
    return;
  }
  if (options.timeline) {
    throw UsageError(
        "[MemoryMeter] a timeline is for the CPU, got " + options.device.str() +
        ". Fix: torch.cuda.memory._record_memory_history for a device.");
  }
  detail::reset_device_peak(options.device);
  impl_->zero = detail::device_memory(options.device).current;
}

MemoryMeter::~MemoryMeter() {
  close();
}

void MemoryMeter::close() {
  if (!impl_->on_cpu()) {
    impl_->read_device();
    impl_->closed = true;
    return;
  }
  detail::stop_observing(impl_);
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->ops.reset();
}

int64_t MemoryMeter::current() const {
  impl_->read_device();
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->current;
}

int64_t MemoryMeter::peak() const {
  impl_->read_device();
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->peak;
}

int64_t MemoryMeter::held() const {
  impl_->read_device();
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->held.value_or(impl_->current);
}

void MemoryMeter::reset_peak() {
  if (!impl_->on_cpu() && !impl_->closed) {
    detail::reset_device_peak(impl_->options.device);
  }
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->peak = impl_->current;
}

std::vector<MemoryEvent> MemoryMeter::timeline() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->events;
}

}  // namespace retape
