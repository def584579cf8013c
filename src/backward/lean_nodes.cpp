#include "backward/lean_nodes.h"

#include "backward/gradient_memory.h"
#include "backward/lean_node.h"
#include "backward/lean_norms.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/variable.h>

namespace retape::detail {

namespace {

using at::Tensor;
using torch::autograd::Edge;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
namespace stock = torch::autograd::generated;

// What one node has saved is another's for a while.
class Lent {
 public:
  Lent(SavedVariable& owner, SavedVariable& user) : owner_(owner), user_(user) {
    user_ = std::move(owner_);
  }
  ~Lent() { owner_ = std::move(user_); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

 private:
  SavedVariable& owner_;
  SavedVariable& user_;
};

// ---- matrix products: the weight's gradient first, then the input is not needed any more

void copy_constants(const stock::MmBackward0& from, stock::MmBackward0& to) {
  to.self_layout = from.self_layout;
  to.self_sym_sizes = from.self_sym_sizes;
  to.self_sym_strides = from.self_sym_strides;
  to.mat2_layout = from.mat2_layout;
  to.mat2_sym_sizes = from.mat2_sym_sizes;
  to.mat2_sym_strides = from.mat2_sym_strides;
}

void copy_constants(const stock::AddmmBackward0& from, stock::AddmmBackward0& to) {
  to.alpha = from.alpha;
  to.beta = from.beta;
  to.mat1_layout = from.mat1_layout;
  to.mat1_sym_sizes = from.mat1_sym_sizes;
  to.mat1_sym_strides = from.mat1_sym_strides;
  to.mat2_layout = from.mat2_layout;
  to.mat2_sym_sizes = from.mat2_sym_sizes;
  to.mat2_sym_strides = from.mat2_sym_strides;
}

void copy_constants(const stock::BmmBackward0&, stock::BmmBackward0&) {}

SavedVariable& input_of(stock::MmBackward0& node) {
  return node.self_;
}
SavedVariable& input_of(stock::AddmmBackward0& node) {
  return node.mat1_;
}
SavedVariable& input_of(stock::BmmBackward0& node) {
  return node.self_;
}

// Two halves of the stock node, each with some of its edges and what it has saved for those.
template <class Stock>
class LeanProduct final : public Stock {
 public:
  using Stock::Stock;

  void take_over(Stock& node) {
    copy_constants(node, *this);
    input_of(*this) = std::move(input_of(node));
    this->mat2_ = std::move(node.mat2_);
  }

  variable_list apply(variable_list&& grads) override {
    const size_t weight = this->num_outputs() - 1;
    if (!is_plain_backward(grads) || !this->task_should_compute_output(weight) ||
        !this->task_should_compute_output(weight - 1)) {
      return Stock::apply(std::move(grads));
    }
    std::lock_guard<std::mutex> lock(this->mutex_);
    auto made = half(
        grads, [&](size_t edge) { return edge == weight; }, input_of(*this), &input_of);
    let_go(input_of(*this));
    auto others = half(grads, [&](size_t edge) { return edge != weight; }, this->mat2_, &weight_of);
    others[weight] = std::move(made[weight]);
    return others;
  }

 private:
  static SavedVariable& weight_of(Stock& node) { return node.mat2_; }

  template <typename Edges>
  variable_list half(
      const variable_list& grads,
      Edges has_edge,
      SavedVariable& saved,
      SavedVariable& (*place)(Stock&)) {
    torch::autograd::edge_list edges;
    for (size_t i = 0; i < this->num_outputs(); ++i) {
      edges.push_back(has_edge(i) ? this->next_edge(i) : Edge());
    }
    const auto node = c10::make_intrusive<Stock>(this->sequence_nr(), std::move(edges));
    copy_constants(*this, *node);
    Lent lent(saved, place(*node));
    return node->apply(variable_list(grads));
  }
};

// ---- products of elements: written over a factor or over the gradient that came in

// grad * factor, in the memory of `over`, one of the two. Broadcast factors too: the engine sums
// what is larger than its tensor.
Tensor product_over(Tensor&& over, const Tensor& other) {
  if (is_ours_alone(over) && is_like(other, over) &&
      at::is_expandable_to(other.sizes(), over.sizes())) {
    // The bytes are nobody else's by now: what this writes is no change of the tensor that was
    // saved.
    over.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(0));
    over.mul_(other);
    return std::move(over);
  }
  return {};
}

Tensor product(Tensor&& grad, const Tensor& factor) {
  auto made = product_over(std::move(grad), factor);
  // NOLINTNEXTLINE(bugprone-use-after-move): moved from only if `made` is defined
  return made.defined() ? made : at::mul(grad, factor);
}

// While `grad` is still needed.
Tensor product_beside(const Tensor& grad, Tensor&& factor) {
  Tensor made;
  if (factor.sizes() == grad.sizes() && factor.strides() == grad.strides()) {
    made = product_over(std::move(factor), grad);
  }
  // NOLINTNEXTLINE(bugprone-use-after-move): as above
  return made.defined() ? made : at::mul(grad, factor);
}

class LeanMul final : public stock::MulBackward0 {
 public:
  using MulBackward0::MulBackward0;

  void take_over(stock::MulBackward0& node) {
    self_ = std::move(node.self_);
    self_scalar_type = node.self_scalar_type;
    other_ = std::move(node.other_);
    other_scalar_type = node.other_scalar_type;
  }

  variable_list apply(variable_list&& grads) override {
    if (!is_plain_backward(grads) || grads[0].scalar_type() != self_scalar_type ||
        grads[0].scalar_type() != other_scalar_type) {
      return MulBackward0::apply(std::move(grads));
    }
    std::lock_guard<std::mutex> lock(mutex_);
    auto grad = std::move(grads[0]);
    variable_list made(2);
    if (task_should_compute_output(0) && task_should_compute_output(1)) {
      auto other = taken(other_);
      if (other.sizes() == grad.sizes()) {
        made[0] = product_beside(grad, std::move(other));
        made[1] = product(std::move(grad), taken(self_));
      } else {
        made[1] = product_beside(grad, taken(self_));
        made[0] = product(std::move(grad), other);
      }
    } else if (task_should_compute_output(0)) {
      made[0] = product(std::move(grad), taken(other_));
    } else if (task_should_compute_output(1)) {
      made[1] = product(std::move(grad), taken(self_));
    }
    return made;
  }
};

class LeanPow final : public stock::PowBackward0 {
 public:
  using PowBackward0::PowBackward0;

  void take_over(stock::PowBackward0& node) {
    self_ = std::move(node.self_);
    exponent = node.exponent;
  }

  variable_list apply(variable_list&& grads) override {
    if (!is_plain_backward(grads) || !task_should_compute_output(0) || exponent.isComplex() ||
        exponent.equal(0.0)) {
      return PowBackward0::apply(std::move(grads));
    }
    std::lock_guard<std::mutex> lock(mutex_);
    const auto self = taken(self_);
    const double power = exponent.toDouble();
    if (!is_like(self, grads[0])) {
      return {at::mul(grads[0], at::mul(self.pow(power - 1), power))};
    }
    auto slope = self.pow(power - 1).mul_(power);
    return {product(std::move(grads[0]), slope)};
  }
};

// ---- functions of one tensor: their gradient is written over the one that came in

void copy_constants(const stock::SiluBackward0&, stock::SiluBackward0&) {}
void copy_constants(const stock::GeluBackward0& from, stock::GeluBackward0& to) {
  to.approximate = from.approximate;
}
void copy_constants(const stock::SoftmaxBackward0& from, stock::SoftmaxBackward0& to) {
  to.dim = from.dim;
  to.self_scalar_type = from.self_scalar_type;
}
void copy_constants(const stock::LogSoftmaxBackward0& from, stock::LogSoftmaxBackward0& to) {
  to.dim = from.dim;
  to.self_scalar_type = from.self_scalar_type;
}

SavedVariable& saved_by(stock::SiluBackward0& node) {
  return node.self_;
}
SavedVariable& saved_by(stock::GeluBackward0& node) {
  return node.self_;
}
SavedVariable& saved_by(stock::SoftmaxBackward0& node) {
  return node.result_;
}
SavedVariable& saved_by(stock::LogSoftmaxBackward0& node) {
  return node.result_;
}

// The gradient in new memory, and its twin that writes over `grad`.
Tensor gradient(const stock::SiluBackward0&, const Tensor& grad, const Tensor& self) {
  return at::silu_backward(grad, self);
}
Tensor gradient(const stock::GeluBackward0& node, const Tensor& grad, const Tensor& self) {
  return at::gelu_backward(grad, self, node.approximate);
}
Tensor gradient(const stock::SoftmaxBackward0& node, const Tensor& grad, const Tensor& result) {
  return at::_softmax_backward_data(grad, result, node.dim, node.self_scalar_type);
}
Tensor gradient(const stock::LogSoftmaxBackward0& node, const Tensor& grad, const Tensor& result) {
  return at::_log_softmax_backward_data(grad, result, node.dim, node.self_scalar_type);
}

void gradient_over(const stock::SiluBackward0&, Tensor& grad, const Tensor& self) {
  at::silu_backward_out(grad, grad, self);
}
void gradient_over(const stock::GeluBackward0& node, Tensor& grad, const Tensor& self) {
  at::gelu_backward_out(grad, grad, self, node.approximate);
}
void gradient_over(const stock::SoftmaxBackward0& node, Tensor& grad, const Tensor& result) {
  at::_softmax_backward_data_out(grad, grad, result, node.dim, node.self_scalar_type);
}
void gradient_over(const stock::LogSoftmaxBackward0& node, Tensor& grad, const Tensor& result) {
  at::_log_softmax_backward_data_out(grad, grad, result, node.dim, node.self_scalar_type);
}

template <class Stock>
bool keeps_dtype(const Stock&, const Tensor&) {
  return true;
}
bool keeps_dtype(const stock::SoftmaxBackward0& node, const Tensor& grad) {
  return node.self_scalar_type == grad.scalar_type();
}
bool keeps_dtype(const stock::LogSoftmaxBackward0& node, const Tensor& grad) {
  return node.self_scalar_type == grad.scalar_type();
}

template <class Stock>
class LeanFunction final : public Stock {
 public:
  using Stock::Stock;

  void take_over(Stock& node) {
    copy_constants(node, *this);
    saved_by(*this) = std::move(saved_by(node));
  }

  variable_list apply(variable_list&& grads) override {
    if (!is_plain_backward(grads) || !this->task_should_compute_output(0)) {
      return Stock::apply(std::move(grads));
    }
    std::lock_guard<std::mutex> lock(this->mutex_);
    const auto saved = taken(saved_by(*this), this);
    auto grad = std::move(grads[0]);
    const Stock& node = *this;
    if (!fits_over(grad, saved) || !keeps_dtype(node, grad)) {
      return {gradient(node, grad, saved)};
    }
    gradient_over(node, grad, saved);
    return {std::move(grad)};
  }
};

// ---- in the place of the stock node

template <class Lean, class Stock>
void replace(const Tensor& result) {
  const auto& node = result.grad_fn();
  if (!node || typeid(*node) != typeid(Stock) || result.layout() != at::kStrided ||
      result.nbytes() < least_lean_bytes() || torch::autograd::AnomalyMode::is_enabled()) {
    return;
  }
  auto& made_by_torch = static_cast<Stock&>(*node);
  auto lean = c10::make_intrusive<Lean>(
      node->sequence_nr(), torch::autograd::edge_list(node->next_edges()));
  lean->take_over(made_by_torch);
  lean->add_input_metadata(result);
  torch::autograd::impl::set_gradient_edge(result, Edge(std::move(lean), 0));
}

struct Row {
  const char* op;
  const char* overload;
  AfterOp make;
  const std::type_info& type;
  const char* stock;
};

template <class Lean, class Stock>
Row row(const char* op, const char* overload, const char* stock_name) {
  return {op, overload, &replace<Lean, Stock>, typeid(Lean), stock_name};
}

const std::vector<Row>& rows() {
  static const auto* all = new std::vector<Row>{
      row<LeanProduct<stock::MmBackward0>, stock::MmBackward0>("aten::mm", "", "MmBackward0"),
      row<LeanProduct<stock::AddmmBackward0>, stock::AddmmBackward0>(
          "aten::addmm", "", "AddmmBackward0"),
      row<LeanProduct<stock::BmmBackward0>, stock::BmmBackward0>("aten::bmm", "", "BmmBackward0"),
      row<LeanMul, stock::MulBackward0>("aten::mul", "Tensor", "MulBackward0"),
      row<LeanPow, stock::PowBackward0>("aten::pow", "Tensor_Scalar", "PowBackward0"),
      row<LeanFunction<stock::SiluBackward0>, stock::SiluBackward0>(
          "aten::silu", "", "SiluBackward0"),
      row<LeanFunction<stock::GeluBackward0>, stock::GeluBackward0>(
          "aten::gelu", "", "GeluBackward0"),
      row<LeanFunction<stock::SoftmaxBackward0>, stock::SoftmaxBackward0>(
          "aten::_softmax", "", "SoftmaxBackward0"),
      row<LeanFunction<stock::LogSoftmaxBackward0>, stock::LogSoftmaxBackward0>(
          "aten::_log_softmax", "", "LogSoftmaxBackward0"),
      row<LeanLayerNorm, stock::NativeLayerNormBackward0>(
          "aten::native_layer_norm", "", "NativeLayerNormBackward0"),
      row<LeanBatchNorm, stock::NativeBatchNormBackward0>(
          "aten::native_batch_norm", "", "NativeBatchNormBackward0"),
  };
  return *all;
}

}  // namespace

AfterOp lean_node_for(const c10::OperatorName& op) {
  for (const auto& row : rows()) {
    if (op.name == row.op && op.overload_name == row.overload) {
      return row.make;
    }
  }
  return nullptr;
}

std::vector<LeanType> lean_types() {
  std::vector<LeanType> types;
  for (const auto& row : rows()) {
    types.push_back({row.type, row.stock});
  }
  return types;
}

}  // namespace retape::detail
