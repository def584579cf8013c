#include "backward/lean_norms.h"

#include "backward/lean_node.h"

#include <ATen/Functions.h>

#include <algorithm>

namespace retape::detail {

namespace {

using at::Tensor;
using torch::autograd::variable_list;
using Wanted = std::array<bool, 3>;  // the input's gradient, the weight's, the bias's
using Made = std::tuple<Tensor, Tensor, Tensor>;

Wanted wanted_of(const torch::autograd::Node& node) {
  return {
      node.task_should_compute_output(0),
      node.task_should_compute_output(1),
      node.task_should_compute_output(2)};
}

variable_list listed(Made&& made) {
  return {std::move(std::get<0>(made)), std::move(std::get<1>(made)), std::move(std::get<2>(made))};
}

// Small beside the whole, and large enough to be worth a call.
int64_t slice_of(int64_t count, size_t bytes) {
  constexpr int64_t kSlices = 16;
  const auto least = static_cast<int64_t>(
      4 * least_lean_bytes() * count / std::max<size_t>(bytes, 1));
  return std::max({(count + kSlices - 1) / kSlices, least, int64_t{1}});
}

template <typename Use>
void each_slice(int64_t count, size_t bytes, Use use) {
  const auto most = slice_of(count, bytes);
  for (int64_t first = 0; first < count; first += most) {
    use(first, std::min(most, count - first));
  }
}

// The kernels of other devices have sums of their own.
bool may_be_sliced(const variable_list& grads, const torch::autograd::Node& node) {
  return is_plain_backward(grads) && grads[0].is_cpu() && grads[0].numel() > 0 &&
      node.task_should_compute_output(0);
}

}  // namespace

// ---- layer_norm: weight and bias, which are sums over all rows, then the rows

void LeanLayerNorm::take_over(Stock& node) {
  bias_ = std::move(node.bias_);
  input_ = std::move(node.input_);
  normalized_shape = node.normalized_shape;
  weight_ = std::move(node.weight_);
  result1_ = std::move(node.result1_);
  result2_ = std::move(node.result2_);
}

variable_list LeanLayerNorm::apply(variable_list&& grads) {
  if (!may_be_sliced(grads, *this)) {
    return Stock::apply(std::move(grads));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const auto input = taken(input_);
  const auto weight = taken(weight_);
  const auto bias = taken(bias_);
  const auto mean = taken(result1_, this);
  const auto rstd = taken(result2_, this);
  auto grad = std::move(grads[0]);
  const auto shape = C10_AS_INTARRAYREF_SLOW(normalized_shape);
  const auto backward =
      [&](const Tensor& dy, const Tensor& x, const Tensor& m, const Tensor& r, Wanted wanted) {
        return at::native_layer_norm_backward(dy, x, shape, m, r, weight, bias, wanted);
      };
  const auto wanted = wanted_of(*this);
  if (!fits_over(grad, input)) {
    return listed(backward(grad, input, mean, rstd, wanted));
  }
  Made made;
  if (wanted[1] || wanted[2]) {
    made = backward(grad, input, mean, rstd, {false, wanted[1], wanted[2]});
  }
  std::vector<int64_t> by_rows{mean.numel()};
  by_rows.insert(by_rows.end(), shape.begin(), shape.end());
  const auto out = grad.view(by_rows);
  const auto in = input.view(by_rows);
  const auto means = mean.flatten();
  const auto rstds = rstd.flatten();
  each_slice(by_rows[0], grad.nbytes(), [&](int64_t first, int64_t count) {
    const auto part = [&](const Tensor& tensor) { return tensor.narrow(0, first, count); };
    const auto dy = part(out);
    dy.copy_(std::get<0>(backward(dy, part(in), part(means), part(rstds), {true, false, false})));
  });
  std::get<0>(made) = std::move(grad);
  return listed(std::move(made));
}

// ---- batch_norm: every channel's gradients are its own

void LeanBatchNorm::take_over(Stock& node) {
  eps = node.eps;
  input_ = std::move(node.input_);
  running_mean_ = std::move(node.running_mean_);
  running_var_ = std::move(node.running_var_);
  training = node.training;
  weight_ = std::move(node.weight_);
  result1_ = std::move(node.result1_);
  result2_ = std::move(node.result2_);
}

variable_list LeanBatchNorm::apply(variable_list&& grads) {
  if (!may_be_sliced(grads, *this)) {
    return Stock::apply(std::move(grads));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const auto input = taken(input_);
  const auto weight = taken(weight_);
  const auto running_mean = taken(running_mean_);
  const auto running_var = taken(running_var_);
  const auto mean = taken(result1_, this);
  const auto invstd = taken(result2_, this);
  auto grad = std::move(grads[0]);
  const auto wanted = wanted_of(*this);
  // Of one number per channel a slice may look as if its channels came last: another kernel.
  const int64_t channels = input.size(1);
  if (!fits_over(grad, input) || input.numel() == input.size(0) * channels) {
    return listed(
        at::native_batch_norm_backward(
            grad, input, weight, running_mean, running_var, mean, invstd, training, eps, wanted));
  }
  std::vector<Tensor> weights, biases;
  each_slice(channels, grad.nbytes(), [&](int64_t first, int64_t count) {
    const auto part = [&](const Tensor& tensor) {  // what evaluation has no use for is empty
      return tensor.defined() && tensor.numel() > 0 ? tensor.narrow(0, first, count) : tensor;
    };
    const auto dy = grad.narrow(1, first, count);
    auto [dx, of_weight, of_bias] = at::native_batch_norm_backward(
        dy.contiguous(),
        input.narrow(1, first, count).contiguous(),
        part(weight),
        part(running_mean),
        part(running_var),
        part(mean),
        part(invstd),
        training,
        eps,
        wanted);
    dy.copy_(dx);
    weights.push_back(std::move(of_weight));
    biases.push_back(std::move(of_bias));
  });
  return {
      std::move(grad),
      wanted[1] ? at::cat(weights) : Tensor(),
      wanted[2] ? at::cat(biases) : Tensor()};
}

}  // namespace retape::detail
