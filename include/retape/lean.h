// Lean backward nodes. On in every scope unless its policy says `lean(false)`.
//
// A stock node of autograd holds all that it has saved until it has made all its gradients, and
// makes each of them in new memory. A lean one takes its place while a scope is open: it makes the
// gradient first that frees the largest saved tensor, and writes over gradients and saved tensors
// that nobody else holds. The kernels are torch's own or their in-place twins: so are the bits. It
// is derived from the stock node, shows its name and its saved tensors, and does what that does
// under create_graph, in anomaly mode, and with anything but plain tensors.
//
// There are lean nodes for mm, addmm, bmm, mul, pow, silu, gelu, softmax, log_softmax, layer_norm
// and batch_norm.
#pragma once

#include <retape/api.h>

#include <cstddef>
#include <typeinfo>
#include <vector>

namespace retape::detail {

// Results smaller than this (16 KiB) keep their stock node: there is little to gain. For tests.
RETAPE_API void set_least_lean_bytes(size_t bytes);

struct LeanType {
  const std::type_info& type;
  const char* stock;  // "MmBackward0": what it is derived from
};
RETAPE_API std::vector<LeanType> lean_types();

}  // namespace retape::detail
