#include "residency/bytes.h"

#include <c10/core/Allocator.h>

namespace retape::detail {

uint8_t misalignment_of(const c10::StorageImpl& storage) {
  // No checks: a discarded storage has no address, and asking for it is an error elsewhere.
  auto& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  return static_cast<uint8_t>(reinterpret_cast<uintptr_t>(data.get()) % kAlignment);
}

c10::Storage uninitialized(c10::DeviceType device, size_t nbytes, uint8_t misalignment) {
  auto* allocator = c10::GetAllocator(device);
  auto data = allocator->allocate(nbytes + misalignment);
  if (misalignment != 0) {
    // The context is what the deleter frees, so the data may start inside the block.
    auto* start = static_cast<char*>(data.get()) + misalignment;
    const auto where = data.device();
    const auto deleter = data.get_deleter();
    data = c10::DataPtr(start, data.release_context(), deleter, where);
  }
  return c10::Storage(
      c10::Storage::use_byte_size_t(), nbytes, std::move(data), allocator, /*resizable=*/true);
}

c10::Storage copy_of(const c10::Storage& storage, uint8_t misalignment) {
  auto copy = uninitialized(storage.device_type(), storage.nbytes(), misalignment);
  c10::GetAllocator(storage.device_type())
      ->copy_data(copy.mutable_data(), storage.data(), storage.nbytes());
  return copy;
}

c10::Storage copy_of(const c10::Storage& storage) {
  return copy_of(storage, misalignment_of(*storage.unsafeGetStorageImpl()));
}

}  // namespace retape::detail
