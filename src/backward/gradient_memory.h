// Whose memory a gradient is.
#pragma once

#include <ATen/core/Tensor.h>

namespace retape::detail {

// The memory of `grad` may hold a result: nobody else has it, it is not somebody's buffer in a
// tensor's clothes, and its strides are those that a new result would have. A view holds its base.
bool is_ours_alone(const at::Tensor& grad);

}  // namespace retape::detail
