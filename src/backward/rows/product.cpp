#include "backward/rows/product.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

namespace retape::detail {

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

enum Edge : size_t { kRows, kAdded, kSink, kEdges };

class ProductBackward final : public torch::autograd::Node {
 public:
  ProductBackward(const Factor& added, const at::Tensor& rows, const Factor& matrix, int64_t blocks)
      : rows_(rows, /*is_output=*/false),
        matrix_(matrix.tensor),
        sum_(matrix.sum),
        added_(added.sum),
        blocks_(blocks) {}

  variable_list apply(variable_list&& grads) override {
    std::lock_guard<std::mutex> lock(mutex_);
    variable_list made(kEdges);
    auto grad = std::move(grads[0]);
    if (!grad.defined()) {
      return made;
    }
    sum_->add_product(rows_.unpack(), grad, blocks_);
    rows_.reset_data();
    if (added_) {
      auto& sum = added_->sum();
      sum.add_(grad.sum(at::IntArrayRef{0}, /*keepdim=*/false, sum.scalar_type()));
    }
    if (task_should_compute_output(kRows)) {
      made[kRows] = at::mm(grad, matrix_.t());
    }
    if (task_should_compute_output(kAdded)) {
      made[kAdded] = std::move(grad);
    }
    return made;
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    rows_.reset_data();
    matrix_.reset();
  }

  std::string name() const override { return "RetapeRowProductBackward"; }

 private:
  SavedVariable rows_;
  at::Tensor matrix_;
  std::shared_ptr<Accumulator> sum_;
  std::shared_ptr<Accumulator> added_;
  int64_t blocks_;
};

}  // namespace

at::Tensor product_of(
    const Factor& added,
    const at::Tensor& rows,
    const Factor& matrix,
    bool idle,
    const at::Tensor& sink,
    int64_t blocks) {
  at::Tensor result;
  {
    c10::NoGradGuard below;
    if (idle) {
      result = at::empty({rows.size(0), matrix.tensor.size(1)}, rows.options());
    } else if (added.tensor.defined()) {
      result = at::addmm(added.tensor, rows, matrix.tensor);
    } else {
      result = at::mm(rows, matrix.tensor);
    }
  }
  const auto node = c10::make_intrusive<ProductBackward>(added, rows, matrix, blocks);
  const auto edge = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor)
                                                      : torch::autograd::Edge();
  };
  node->set_next_edges(
      {edge(rows), added.sum ? torch::autograd::Edge() : edge(added.tensor), edge(sink)});
  torch::autograd::set_history(result, node);
  return result;
}

}  // namespace retape::detail
