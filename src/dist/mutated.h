// What a mutation makes of a rank's part of a sum.
#pragma once

#include <retape/dist/contribution.h>

#include <ATen/core/Tensor.h>

namespace retape::dist::detail {

at::Tensor mutated(const at::Tensor& partial, Change change, int size);

}  // namespace retape::dist::detail
