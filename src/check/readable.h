// The bytes of a tensor, whatever it is, as plain memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace retape::detail {

// Dense, contiguous, on the CPU; sparse ones are made dense. UsageError for what has no bytes that
// can be read from here: wrapper subclasses, nested, quantized and meta tensors. `what`: for it.
at::Tensor readable(const at::Tensor& tensor, const std::string& what);

// A copy that nothing changes any more, off the graph.
at::Tensor frozen(const at::Tensor& tensor, const std::string& what);

}  // namespace retape::detail
