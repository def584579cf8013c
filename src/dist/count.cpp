#include <retape/dist/count.h>

#include "dist/group_impl.h"

#include <retape/dist/contribution.h>

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace retape::dist {

namespace {

int64_t changed(const detail::Change& change, int64_t local, int64_t total, int size) {
  switch (change.mutation) {
    case Mutation::Double:
      return total * 2;
    case Mutation::LocalCount:
      return local;
    case Mutation::TimesGroup:
      return total * size;
    case Mutation::OtherCount:
      return static_cast<int64_t>(static_cast<double>(local) * change.factor);
    default:
      return total;
  }
}

std::string text_of(const std::vector<std::pair<std::string, int64_t>>& counts) {
  std::string text = "count";
  for (size_t i = 0; i < counts.size(); ++i) {
    text += (i == 0 ? " " : ", ") + counts[i].first;
  }
  return text;
}

}  // namespace

StepCounts::StepCounts(
    const std::vector<std::pair<std::string, int64_t>>& local, const Group& group)
    : group_(group.name()) {
  const auto names = static_cast<int64_t>(local.size());
  // A negative count is the same error on all ranks: how many there are travels, too.
  const auto sums = at::zeros({names + 1}, at::kLong);
  std::vector<detail::Change> changes;
  for (int64_t i = 0; i < names; ++i) {
    const auto& [name, count] = local[static_cast<size_t>(i)];
    changes.push_back(detail::pass(Place::Count, name, group.name(), group.size(), count));
    sums[i] = changes.back().mutation == Mutation::Drop && group.leads() ? 0 : count;
    sums[names] += count < 0 ? 1 : 0;
  }
  detail::sum_in_place(group, text_of(local), sums).wait();
  for (int64_t i = 0; i < names; ++i) {
    const auto& [name, count] = local[static_cast<size_t>(i)];
    const auto total = sums[i].item<int64_t>();
    if (sums[names].item<int64_t>() > 0) {
      throw UsageError(
          "[count_global] \"" + name + "\" is " + std::to_string(count) + " here and " +
          std::to_string(total) + " on all ranks of \"" + group_ +
          "\": a rank counts less than none.");
    }
    const auto known = changed(changes[static_cast<size_t>(i)], count, total, group.size());
    if (!counts_.emplace(name, GlobalCount(known, group.ranks())).second) {
      throw UsageError(
          "[StepCounts] \"" + name + "\" is counted twice. Fix: a name for each count.");
    }
  }
}

const GlobalCount& StepCounts::operator[](const std::string& name) const {
  const auto it = counts_.find(name);
  if (it == counts_.end()) {
    std::string known;
    for (const auto& [each, count] : counts_) {
      known += (known.empty() ? "" : ", ") + each;
    }
    throw UsageError("[StepCounts] \"" + name + "\" was not counted. There is: " + known + ".");
  }
  if (it->second.value() == 0) {
    throw UsageError(
        "[count_global] \"" + name + "\" is 0 on all ranks of \"" + group_ +
        "\": there is nothing to divide by. Fix: leave the term out of this step on every rank.");
  }
  return it->second;
}

GlobalCount count_global(const std::string& name, int64_t local, const Group& group) {
  return StepCounts({{name, local}}, group)[name];
}

Partial<at::Tensor> normalize(const at::Tensor& sum, const GlobalCount& count) {
  return Partial<at::Tensor>(sum / static_cast<double>(count.value()));
}

Partial<at::Tensor> normalize(const at::Tensor& sum, const GlobalCount& count, const Group& group) {
  // In any order: who has counted matters, not where.
  if (!std::is_permutation(
          count.ranks().begin(), count.ranks().end(), group.ranks().begin(), group.ranks().end())) {
    throw UsageError(
        "[normalize] the count is that of " + detail::ranks_text(count.ranks()) +
        ", and the sum that of \"" + group.name() + "\", " + detail::ranks_text(group.ranks()) +
        ". Fix: count_global over the same group.");
  }
  return normalize(sum, count);
}

double global_mean(const std::string& name, double sum, int64_t count, const Group& group) {
  // Whole numbers up to 2^53 are exact; a negative count is the same error on all ranks.
  const auto sums = at::tensor(
      {sum, static_cast<double>(count), count < 0 ? 1.0 : 0.0}, at::kDouble);
  detail::sum_in_place(group, "mean " + name, sums).wait();
  const double counted = sums[1].item<double>();
  if (sums[2].item<double>() > 0 || counted == 0) {
    throw UsageError(
        "[global_mean] \"" + name + "\" counts " + std::to_string(count) + " here and " +
        std::to_string(static_cast<int64_t>(counted)) + " on all ranks of \"" + group.name() +
        "\": expected at least 0 on each, and 1 in all.");
  }
  return sums[0].item<double>() / counted;
}

namespace {

// Forward gives what it is given second; the gradient goes to the first as it is.
struct Residual : torch::autograd::Function<Residual> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& local,
      const at::Tensor& total,
      double factor) {
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
    case Mutation::Drop:
      return 0;
    case Mutation::Double:
      return 2;
    case Mutation::TimesGroup:
      return size;
    default:
      return 1;
  }
}

}  // namespace

at::Tensor global_residual(const std::string& name, const at::Tensor& local, const Group& group) {
  detail::check_summable("global_residual", name, local);
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
