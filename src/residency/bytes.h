// Plain memory for values, allocated without the dispatcher: safe under a lock.
//
// Kernels may round differently at another alignment: MKL's dot and mv peel elements until they
// reach a boundary. So bytes that a kernel will read or write again keep their address modulo
// kAlignment.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>

namespace retape::detail {

constexpr size_t kAlignment = 64;  // what c10's allocators give, and the widest vector of a CPU

// Address modulo kAlignment. 0 for memory that torch has allocated, for none, and for what is
// discarded.
uint8_t misalignment_of(const c10::StorageImpl& storage);

// At the alignment of the original, or at another one.
c10::Storage copy_of(const c10::Storage& storage);
c10::Storage copy_of(const c10::Storage& storage, uint8_t misalignment);

c10::Storage uninitialized(c10::DeviceType device, size_t nbytes, uint8_t misalignment = 0);

}  // namespace retape::detail
