#include "backward/lean_node.h"

#include "backward/gradient_memory.h"
#include "tape/view.h"

#include <retape/lean.h>

#include <c10/util/strides.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>

namespace retape::detail {

using at::Tensor;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

namespace {

std::atomic<size_t> least_bytes{size_t{1} << 14};

}  // namespace

bool is_plain_backward(const variable_list& grads) {
  return grads.size() == 1 && grads[0].defined() && !at::GradMode::is_enabled() &&
      grads[0].layout() == at::kStrided && is_plain(grads[0]) && !grads[0].is_complex() &&
      !c10::impl::tls_local_dispatch_key_set().included_.has(c10::DispatchKey::Python);
}

bool is_like(const Tensor& saved, const Tensor& grad) {
  return saved.defined() && is_plain(saved) && saved.scalar_type() == grad.scalar_type() &&
      saved.device() == grad.device() && saved.layout() == at::kStrided;
}

bool fits_over(const Tensor& grad, const Tensor& saved) {
  return is_ours_alone(grad) && is_like(saved, grad) && saved.sizes() == grad.sizes() &&
      saved.strides() == grad.strides();
}

void let_go(SavedVariable& saved) {
  if (!torch::autograd::get_current_graph_task_keep_graph()) {
    saved.reset_data();
  }
}

Tensor taken(SavedVariable& saved, torch::autograd::Node* node) {
  using NodePtr = c10::intrusive_ptr<torch::autograd::Node>;
  auto tensor = saved.unpack(node != nullptr ? NodePtr::reclaim_copy(node) : NodePtr());
  let_go(saved);
  return tensor;
}

bool is_ours_alone(const Tensor& grad) {
  size_t holders = 1;
  if (grad.is_view()) {
    if (grad._base().use_count() != 1) {
      return false;
    }
    ++holders;
  }
  const auto& storage = grad.storage();
  return grad.use_count() == 1 && storage.use_count() == holders && storage.resizable() &&
      grad.nbytes() == storage.nbytes() &&
      grad.strides() == c10::IntArrayRef(c10::contiguous_strides(grad.sizes()));
}

void set_least_lean_bytes(size_t bytes) {
  least_bytes = bytes;
}

size_t least_lean_bytes() {
  return least_bytes.load(std::memory_order_relaxed);
}

}  // namespace retape::detail
