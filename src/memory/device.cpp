// Devices with a caching allocator keep their own numbers; this reads them.
#include <retape/error.h>
#include <retape/memory.h>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace retape {

namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

const Stat& total(const StatArray& stats) {
  return stats[static_cast<size_t>(StatType::AGGREGATE)];
}

c10::DeviceAllocator& allocator_of(const char* function, c10::Device device) {
  if (device.is_cpu()) {
    throw UsageError(
        std::string("[") + function +
        "] the CPU has no caching allocator: expected a device such as cuda:0, got cpu. Fix: open a MemoryMeter.");
  }
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr) {
    throw UsageError(
        std::string("[") + function + "] this build of torch has no caching allocator for " +
        device.str() + ". Fix: install a build of torch for that device.");
  }
  return *allocator;
}

}  // namespace

DeviceMemory device_memory(c10::Device device) {
  const auto stats = allocator_of("device_memory", device).getDeviceStats(device.index());
  const auto& bytes = total(stats.requested_bytes);
  return {bytes.current, bytes.peak, total(stats.reserved_bytes).current};
}

void reset_device_peak(c10::Device device) {
  allocator_of("reset_device_peak", device).resetPeakStats(device.index());
}

}  // namespace retape
