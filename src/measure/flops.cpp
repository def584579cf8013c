#include "measure/flops.h"

#include <ATen/core/Tensor.h>

#include <unordered_map>

namespace retape::detail {

namespace {

using Args = c10::ArrayRef<c10::IValue>;

// (batch of) n x k and k x m.
uint64_t product(const at::Tensor& left, const at::Tensor& right) {
  return 2 * static_cast<uint64_t>(left.numel()) * static_cast<uint64_t>(right.size(-1));
}

template <size_t first>
uint64_t product_of(Args args) {
  return product(args[first].toTensor(), args[first + 1].toTensor());
}

// Every element of the weight is used at every place of the output, or of the input of a transposed
// one.
uint64_t convolved(const at::Tensor& places, const at::Tensor& weight) {
  uint64_t count = 2 * static_cast<uint64_t>(places.size(0)) *
      static_cast<uint64_t>(weight.numel());
  for (int64_t dim = 2; dim < places.dim(); ++dim) {
    count *= static_cast<uint64_t>(places.size(dim));
  }
  return count;
}

uint64_t convolution(Args args) {
  const auto& input = args[0].toTensor();
  const auto& weight = args[1].toTensor();
  if (args[6].toBool()) {
    return convolved(input, weight);
  }
  const auto stride = args[3].toIntVector();
  const auto padding = args[4].toIntVector();
  const auto dilation = args[5].toIntVector();
  uint64_t count = 2 * static_cast<uint64_t>(input.size(0)) * static_cast<uint64_t>(weight.numel());
  for (int64_t dim = 2; dim < input.dim(); ++dim) {
    const auto of = [&](const std::vector<int64_t>& each) {
      return each.size() == 1 ? each[0] : each[dim - 2];
    };
    const auto reach = of(dilation) * (weight.size(dim) - 1) + 1;
    count *= static_cast<uint64_t>((input.size(dim) + 2 * of(padding) - reach) / of(stride) + 1);
  }
  return count;
}

uint64_t convolution_backward(Args args) {
  const bool transposed = args[7].toBool();
  const auto wanted = args[10].toBoolList();
  return (wanted[0] + wanted[1]) *
      convolved(args[transposed ? 1 : 0].toTensor(), args[2].toTensor());
}

// Scores of every query with every key: how many multiplications for each.
uint64_t attention(const at::Tensor& query, const at::Tensor& key, int64_t for_each) {
  return 2 * static_cast<uint64_t>(query.numel() / query.size(-1)) *
      static_cast<uint64_t>(key.size(-2) * for_each);
}

uint64_t attention_forward(Args args) {
  const auto& query = args[0].toTensor();
  return attention(query, args[1].toTensor(), query.size(-1) + args[2].toTensor().size(-1));
}

// The scores once more, and four products: gradients of value, of scores, of query and of key.
uint64_t attention_backward(Args args) {
  const auto& query = args[1].toTensor();
  return attention(query, args[2].toTensor(), 3 * query.size(-1) + 2 * args[3].toTensor().size(-1));
}

}  // namespace

uint64_t flops_of(const std::string& op, Args args) {
  static const auto* known = new std::unordered_map<std::string, uint64_t (*)(Args)>{
      {"aten::mm", &product_of<0>},
      {"aten::bmm", &product_of<0>},
      {"aten::addmm", &product_of<1>},
      {"aten::addmm_", &product_of<1>},
      {"aten::baddbmm", &product_of<1>},
      {"aten::baddbmm_", &product_of<1>},
      {"aten::convolution", &convolution},
      {"aten::convolution_backward", &convolution_backward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", &attention_forward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", &attention_backward},
  };
  const auto found = known->find(op);
  return found == known->end() ? 0 : found->second(args);
}

}  // namespace retape::detail
