// What lean nodes have in common: when they may do other than torch's, and what they let go.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

namespace retape::detail {

// Nothing but numbers: no graph of this backward, no wrapper, no mode that looks on.
bool is_plain_backward(const torch::autograd::variable_list& grads);

bool is_like(const at::Tensor& saved, const at::Tensor& grad);

// A result of both may be written over `grad`, element by element.
bool fits_over(const at::Tensor& grad, const at::Tensor& saved);

// Unless this backward keeps the graph.
void let_go(torch::autograd::SavedVariable& saved);

// `node`: whose own output it may be.
at::Tensor taken(torch::autograd::SavedVariable& saved, torch::autograd::Node* node = nullptr);

size_t least_lean_bytes();

}  // namespace retape::detail
