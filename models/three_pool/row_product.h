// x [rows, positions, in] times weight [in, out], each row of the batch by itself: one product of
// all rows rounds as their number asks for, and ranks have fewer of them than the reference.
#pragma once

#include <torch/torch.h>

namespace three_pool {

inline at::Tensor row_product(const at::Tensor& x, const at::Tensor& weight) {
  return at::bmm(x, weight.unsqueeze(0).expand({x.size(0), -1, -1}));
}

}  // namespace three_pool
