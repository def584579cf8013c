#include <retape/dist/clip.h>

#include "dist/group_impl.h"

#include <retape/dist/contribution.h>

#include <ATen/Functions.h>

#include <cmath>
#include <iomanip>
#include <limits>
#include <sstream>
#include <unordered_set>

namespace retape::dist {

namespace {

struct Counted {
  std::vector<at::Tensor> here;       // of distinct parameters whose replicas this rank leads
  std::vector<at::Tensor> elsewhere;  // whose replicas another leads
};

Counted counted(const std::vector<Held>& held) {
  std::unordered_set<const c10::TensorImpl*> seen;
  Counted gradients;
  for (const auto& [parameters, replicas, elsewhere] : held) {
    for (const auto& parameter : parameters) {
      if (parameter.grad().defined()) {
        detail::check_dense(
            "clip_grad_norm", "a gradient", parameter.grad());  // on all that have it
      }
      if (parameter.grad().defined() && seen.insert(parameter.unsafeGetTensorImpl()).second) {
        (replicas.leads() && !elsewhere ? gradients.here : gradients.elsewhere)
            .push_back(parameter.grad());
      }
    }
  }
  return gradients;
}

// `what` is agreed on: ranks that clip by other numbers would drift apart.
double total_norm(
    const std::vector<at::Tensor>& gradients,
    const Group& everyone,
    double type,
    const std::string& what) {
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
    for (const auto& other :
         everyone.gather("largest gradient, " + what, at::full({1}, largest, at::kDouble))) {
      const auto there = other.item<double>();
      most = std::isnan(there) || std::isnan(most) ? std::numeric_limits<double>::quiet_NaN()
                                                   : std::max(most, there);
    }
    return most;
  }
  const auto sum = at::zeros({1}, at::kDouble);
  for (const auto& gradient : gradients) {
    sum.add_(gradient.detach().abs().to(at::kDouble).pow(type).sum().cpu());  // complex ones have
                                                                              // one, too
  }
  detail::sum_in_place(everyone, "powers of gradients, " + what, sum).wait();
  return std::pow(sum.item<double>(), 1 / type);
}

}  // namespace

double clip_grad_norm(
    const std::vector<Held>& held, double max_norm, const Group& everyone, ClipOptions options) {
  if (!(options.norm_type > 0)) {
    throw UsageError(
        "[clip_grad_norm] norm_type is " + std::to_string(options.norm_type) +
        ". Fix: a number above 0, or infinity.");
  }
  const at::NoGradGuard no_grad;
  auto gradients = counted(held);
  // The largest of all is the same, however often it is counted.
  const auto replicas = std::isinf(options.norm_type)
      ? 0
      : static_cast<int64_t>(gradients.elsewhere.size());
  const auto change =
      detail::pass(Place::Norm, "norm", everyone.name(), everyone.size(), replicas).mutation;
  if (change == Mutation::EveryReplica) {
    gradients.here.insert(
        gradients.here.end(), gradients.elsewhere.begin(), gradients.elsewhere.end());
  }
  std::ostringstream what;
  what << std::setprecision(17) << "norm_type " << options.norm_type << ", max_norm " << max_norm;
  const auto norm = total_norm(gradients.here, everyone, options.norm_type, what.str());
  if (options.error_if_nonfinite && !std::isfinite(norm)) {
    throw UsageError(
        "[clip_grad_norm] the norm over \"" + everyone.name() + "\" is " + std::to_string(norm) +
        ". Fix: SumReducer's check_finite names rank and parameter.");
  }
  const double ratio = max_norm / (norm + 1e-6);
  const double factor = ratio > 1 ? 1
                                  : ratio;  // as torch: a norm that is NaN makes all of them NaN
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& [parameters, leaders, elsewhere] : held) {
    for (const auto& parameter : parameters) {
      if (parameter.grad().defined() && seen.insert(parameter.unsafeGetTensorImpl()).second) {
        parameter.grad().mul_(factor);
      }
    }
  }
  return norm;
}

}  // namespace retape::dist
