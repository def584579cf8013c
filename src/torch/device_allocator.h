// What a device's caching allocator counts.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace retape::detail {

struct DeviceMemory {
  int64_t current;
  int64_t peak;
};

// UsageError for a device that this build of torch has no caching allocator for.
DeviceMemory device_memory(c10::Device device);
void reset_device_peak(c10::Device device);

}  // namespace retape::detail
