// Which tensor autograd is about to save. The engine is asked for hooks without being told, but
// just before that autograd asks whether the tensor is a leaf: a front of libtorch's variable hooks
// notes it.
#pragma once

#include <ATen/core/Tensor.h>

namespace retape::detail {

// Once per process; a second call does nothing.
void install_variable_front();

// The tensor that this thread asked about last, for the one caller that follows; null if it is
// unknown. Valid as long as the caller's caller, which owns it.
const at::Tensor* take_tensor_being_saved();

}  // namespace retape::detail
