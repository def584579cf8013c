#include <retape/dist/count.h>

#include "dist/group_impl.h"

#include <retape/dist/contribution.h>

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

namespace retape::dist {

GlobalCount count_global(const std::string& name, int64_t local, const Group& group) {
  const auto change = detail::pass(Place::Count, name, group.name(), group.size());
  // A negative count, or none anywhere, is the same error on all ranks: both travel.
  const auto counts = at::empty({2}, at::kLong);
  counts[0] = local;
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
  switch (change.mutation) {
    case Mutation::LocalCount: return GlobalCount(local);
    case Mutation::TimesGroup: return GlobalCount(total * group.size());
    case Mutation::OtherCount: return GlobalCount(static_cast<int64_t>(static_cast<double>(local) * change.factor));
    default: return GlobalCount(total);
  }
}

Partial<at::Tensor> normalize(const at::Tensor& sum, GlobalCount count) {
  return Partial<at::Tensor>(sum / static_cast<double>(count.value()));
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

}  // namespace

at::Tensor global_residual(const std::string& name, const at::Tensor& local, const Group& group) {
  const auto change = detail::pass(Place::Residual, name, group.name(), group.size()).mutation;
  at::Tensor total;
  detail::sum_of(
      group,
      {"global sum \"" + name + "\" " + detail::shape_of(local), ""},
      local,
      [local] { return local.detach().clone(at::MemoryFormat::Contiguous); },
      [&](const at::Tensor& sum) { total = sum; })
      .wait();
  if (change == Mutation::LocalValue) {
    total = local.detach().clone();
  }
  return Residual::apply(local, total, change == Mutation::TimesGroup ? group.size() : 1.0);
}

}  // namespace retape::dist
