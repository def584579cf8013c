#include <retape/dist/clip.h>

#include <retape/dist/contribution.h>

#include <ATen/Functions.h>

#include <cmath>
#include <limits>
#include <unordered_set>

namespace retape::dist {

namespace {

// Gradients that this rank counts: of distinct parameters whose replicas it leads.
std::vector<at::Tensor> counted(const std::vector<Held>& held, bool every_replica) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::vector<at::Tensor> gradients;
  for (const auto& [parameters, replicas] : held) {
    for (const auto& parameter : parameters) {
      if (parameter.grad().defined() && seen.insert(parameter.unsafeGetTensorImpl()).second &&
          (every_replica || replicas.leads())) {
        gradients.push_back(parameter.grad());
      }
    }
  }
  return gradients;
}

double total_norm(const std::vector<at::Tensor>& gradients, const Group& everyone, double type) {
  if (std::isinf(type)) {
    double largest = 0;
    for (const auto& gradient : gradients) {
      if (gradient.numel() > 0) {
        const auto here = gradient.detach().abs().max().item<double>();
        largest = std::isnan(here) || here > largest ? here : largest;
        if (std::isnan(here)) {
          break;
        }
      }
    }
    double most = 0;
    for (const auto& other : everyone.gather("largest gradient", at::full({1}, largest, at::kDouble))) {
      const auto there = other.item<double>();
      most = std::isnan(there) || std::isnan(most) ? std::numeric_limits<double>::quiet_NaN() : std::max(most, there);
    }
    return most;
  }
  const auto sum = at::zeros({1}, at::kDouble);
  for (const auto& gradient : gradients) {
    sum.add_(gradient.detach().abs().to(at::kDouble).pow(type).sum().cpu());  // complex ones have one, too
  }
  everyone.sum("powers of gradients", sum);
  return std::pow(sum.item<double>(), 1 / type);
}

}  // namespace

double clip_grad_norm(
    const std::vector<Held>& held, double max_norm, const Group& everyone, ClipOptions options) {
  if (!(options.norm_type > 0)) {
    throw UsageError(
        "[clip_grad_norm] norm_type is " + std::to_string(options.norm_type) + ". Fix: a number above 0, or infinity.");
  }
  const at::NoGradGuard no_grad;
  const auto change = detail::pass(Place::Norm, "norm", everyone.name(), everyone.size()).mutation;
  const auto norm = total_norm(counted(held, change == Mutation::EveryReplica), everyone, options.norm_type);
  if (options.error_if_nonfinite && !std::isfinite(norm)) {
    throw UsageError(
        "[clip_grad_norm] the norm over \"" + everyone.name() + "\" is " + std::to_string(norm) +
        ". Fix: SumReducer's check_finite names rank and parameter.");
  }
  const double ratio = max_norm / (norm + 1e-6);
  const double factor = ratio > 1 ? 1 : ratio;  // as torch: a norm that is NaN makes all of them NaN
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& [parameters, replicas] : held) {
    for (const auto& parameter : parameters) {
      if (parameter.grad().defined() && seen.insert(parameter.unsafeGetTensorImpl()).second) {
        parameter.grad().mul_(factor);
      }
    }
  }
  return norm;
}

}  // namespace retape::dist
