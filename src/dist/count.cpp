#include <retape/dist/count.h>

#include "dist/group_impl.h"

#include <retape/dist/contribution.h>

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace retape::dist {

GlobalCount count_global(const std::string& name, int64_t local, const Group& group) {
  const auto change = detail::pass(Place::Count, name, group.name(), group.size(), local);
  // A negative count, or none anywhere, is the same error on all ranks: both travel.
  const auto counts = at::empty({2}, at::kLong);
  counts[0] = change.mutation == Mutation::Drop && group.leads() ? 0 : local;
  counts[1] = local < 0 ? 1 : 0;
  group.sum("count " + name, counts);
  const auto total = counts[0].item<int64_t>();
  if (counts[1].item<int64_t>() > 0 || total == 0) {
    throw UsageError(
        "[count_global] \"" + name + "\" is " + std::to_string(local) + " here and " + std::to_string(total) +
        " on all ranks of \"" + group.name() + "\": " +
        (total == 0 ? "there is nothing to divide by. Fix: leave the term out of this step on every rank."
                    : "a rank counts less than none."));
  }
  const auto count = [&] {
    switch (change.mutation) {
      case Mutation::Double: return total * 2;
      case Mutation::LocalCount: return local;
      case Mutation::TimesGroup: return total * group.size();
      case Mutation::OtherCount: return static_cast<int64_t>(static_cast<double>(local) * change.factor);
      default: return total;
    }
  };
  return GlobalCount(count(), group.ranks());
}

Partial<at::Tensor> normalize(const at::Tensor& sum, const GlobalCount& count) {
  return Partial<at::Tensor>(sum / static_cast<double>(count.value()));
}

Partial<at::Tensor> normalize(const at::Tensor& sum, const GlobalCount& count, const Group& group) {
  // In any order: who has counted matters, not where.
  if (!std::is_permutation(
          count.ranks().begin(), count.ranks().end(), group.ranks().begin(), group.ranks().end())) {
    throw UsageError(
        "[normalize] the count is that of " + detail::ranks_text(count.ranks()) + ", and the sum that of \"" +
        group.name() + "\", " + detail::ranks_text(group.ranks()) + ". Fix: count_global over the same group.");
  }
  return normalize(sum, count);
}

namespace {

// Forward gives what it is given second; the gradient goes to the first as it is.
struct Residual : torch::autograd::Function<Residual> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context, const at::Tensor& local, const at::Tensor& total, double factor) {
    context->saved_data["factor"] = factor;
    return total;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    const double factor = context->saved_data["factor"].toDouble();
    return {factor == 1 ? gradients[0] : gradients[0] * factor, at::Tensor(), at::Tensor()};
  }
};

double factor_of(Mutation change, int size) {
  switch (change) {
    case Mutation::Drop: return 0;
    case Mutation::Double: return 2;
    case Mutation::TimesGroup: return size;
    default: return 1;
  }
}

}  // namespace

at::Tensor global_residual(const std::string& name, const at::Tensor& local, const Group& group) {
  const auto change = detail::pass(Place::Residual, name, group.name(), group.size()).mutation;
  at::Tensor total;
  detail::sum_of(
      group,
      {"global sum \"" + name + "\" " + detail::shape_of(local)},
      local,
      [local] { return local.detach().clone(at::MemoryFormat::Contiguous); },
      [&](const at::Tensor& sum) { total = sum; })
      .wait();
  if (change == Mutation::LocalValue) {
    total = local.detach().clone();
  }
  return Residual::apply(local, total, factor_of(change, group.size()));
}

}  // namespace retape::dist
