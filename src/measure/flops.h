// How much there is to compute in one op.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>

namespace retape::detail {

// Of matrix products, convolutions and fused attention, and of their gradients; 0 for other ops.
uint64_t flops_of(const std::string& op, c10::ArrayRef<c10::IValue> args);

}  // namespace retape::detail
