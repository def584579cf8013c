// Lean nodes of the norms. Their kernels have no in-place twins, but they treat rows (layer_norm)
// or channels (batch_norm) apart: run slice by slice, each written over its part of the gradient
// that came in, they give the same bits, and beside the saved input there is one gradient and a
// sixteenth.
#pragma once

#include <torch/csrc/autograd/generated/Functions.h>

namespace retape::detail {

class LeanLayerNorm final : public torch::autograd::generated::NativeLayerNormBackward0 {
 public:
  using Stock = torch::autograd::generated::NativeLayerNormBackward0;
  using Stock::Stock;
  void take_over(Stock& node);
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;
};

class LeanBatchNorm final : public torch::autograd::generated::NativeBatchNormBackward0 {
 public:
  using Stock = torch::autograd::generated::NativeBatchNormBackward0;
  using Stock::Stock;
  void take_over(Stock& node);
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;
};

}  // namespace retape::detail
