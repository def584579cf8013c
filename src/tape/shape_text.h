// What a tensor looks like, for people.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace retape::detail {

// "float32 [2, 3]", "float32 [2, 3] sparse", "none".
std::string shape_text(const at::Tensor& tensor);

}  // namespace retape::detail
