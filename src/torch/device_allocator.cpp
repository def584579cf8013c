#include "torch/device_allocator.h"

#include <retape/error.h>

#include <c10/core/CachingDeviceAllocator.h>

#include <string>

namespace retape::detail {

namespace {

c10::DeviceAllocator& allocator_of(c10::Device device) {
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr || !allocator->initialized()) {
    throw UsageError(
        "[MemoryMeter] no caching allocator for " + device.str() +
        ": this build of torch has none, or the device was not used yet. Fix: install a torch for "
        "that device and put a tensor on it first, or meter the CPU.");
  }
  return *allocator;
}

}  // namespace

DeviceMemory device_memory(c10::Device device) {
  const auto stats = allocator_of(device).getDeviceStats(device.index());
  const auto& bytes =
      stats.requested_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  return {bytes.current, bytes.peak};
}

void reset_device_peak(c10::Device device) {
  allocator_of(device).resetPeakStats(device.index());
}

}  // namespace retape::detail
