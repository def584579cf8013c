// One backward pass through a call that is sliced.
#pragma once

#include "backward/rows/plan.h"

#include <torch/csrc/autograd/variable.h>

namespace retape::detail {

struct SlicedPass {
  const Plan& plan;
  int64_t slices;
  std::vector<at::Tensor> given;         // in the plan's order
  std::vector<bool> wanted;              // whose gradient somebody asks for
  torch::autograd::variable_list grads;  // of the outputs; some may be undefined
};

// Gradients of what was given. Counts the ops that it ran.
torch::autograd::variable_list backward_in_slices(SlicedPass pass, uint64_t& ops);

}  // namespace retape::detail
