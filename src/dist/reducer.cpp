#include <retape/dist/reducer.h>

#include "dist/bucket.h"
#include "dist/group_impl.h"

#include <retape/dist/contribution.h>

#include <ATen/Functions.h>

#include <set>

namespace retape::dist {

using detail::Bucket;
using detail::Call;
using detail::Entry;

namespace {

// What a mutation makes of this rank's part.
at::Tensor changed(const at::Tensor& partial, Mutation mutation, int size) {
  switch (mutation) {
    case Mutation::Drop: return at::zeros_like(partial);
    case Mutation::Double: return partial * 2;
    case Mutation::Average: return partial / size;
    case Mutation::TimesGroup: return partial * size;
    default: return partial;
  }
}

}  // namespace

struct SumReducer::Impl {
  Group group;
  ReducerOptions options;
  std::vector<Entry> entries;
  std::set<std::string> names;
  // Parameters of add_gradients, whose gradients may be undefined here.
  std::vector<Entry> parameters;
  std::vector<Pending> pending;

  void insert(const std::string& name, const at::Tensor& tensor) {
    if (!names.insert(name).second) {
      throw UsageError("[SumReducer] \"" + name + "\" was added already: it would be summed twice.");
    }
    const auto change = detail::pass(Place::Sum, name, group.name(), group.size()).mutation;
    if (change != Mutation::None) {
      const at::NoGradGuard no_grad;
      tensor.copy_(changed(tensor.detach(), change, group.size()));
    }
    entries.push_back({name, tensor});
  }

  // Which gradients there are on any rank: those are summed, with zeros where there is none here.
  void add_those_that_exist() {
    if (parameters.empty()) {
      return;
    }
    const auto exists = at::zeros({static_cast<int64_t>(parameters.size())}, at::kInt);
    for (size_t i = 0; i < parameters.size(); ++i) {
      exists[i] = parameters[i].tensor.grad().defined() ? 1 : 0;
    }
    group.sum("which gradients there are", exists);
    for (size_t i = 0; i < parameters.size(); ++i) {
      auto& parameter = parameters[i].tensor;
      if (exists[i].item<int>() == 0) {
        continue;
      }
      if (!parameter.grad().defined()) {
        const at::NoGradGuard no_grad;
        parameter.mutable_grad() = at::zeros_like(parameter);
      }
      insert(parameters[i].name, parameter.grad());
    }
    parameters.clear();
  }

  void start() {
    add_those_that_exist();
    const auto complaint = options.check_finite ? detail::not_finite(entries) : std::string();
    auto buckets = detail::make_buckets(std::exchange(entries, {}), options.bucket_bytes);
    names.clear();
    for (auto& bucket : buckets) {
      const auto shared = std::make_shared<Bucket>(std::move(bucket));
      std::string wire = options.wire ? std::string(" as ") + c10::toString(*options.wire) : "";
      pending.push_back(detail::sum_of(
          group,
          Call{"sum " + shared->text() + wire, complaint},
          shared->entries.front().tensor,
          [shared, wire = options.wire] { return shared->flatten(wire); },
          [shared](const at::Tensor& flat) { shared->copy_back(flat); }));
    }
  }
};

SumReducer::SumReducer(Group group, ReducerOptions options)
    : impl_(new Impl{std::move(group), options, {}, {}, {}, {}}) {}
SumReducer::~SumReducer() = default;
SumReducer::SumReducer(SumReducer&&) noexcept = default;
SumReducer& SumReducer::operator=(SumReducer&&) noexcept = default;

void SumReducer::add(const std::string& name, const Partial<at::Tensor>& partial) {
  const auto& tensor = partial.value();
  if (!tensor.defined() || tensor.layout() != at::kStrided) {
    throw UsageError(
        "[SumReducer] \"" + name + "\" is " +
        (tensor.defined() ? "sparse. Fix: to_dense()."
                          : "undefined here, and may not be on other ranks. Fix: add_gradients, or zeros."));
  }
  impl_->insert(name, tensor);
}

void SumReducer::add_gradients(const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  for (const auto& [name, parameter] : parameters) {
    const auto& gradient = parameter.grad();
    if (gradient.defined() && gradient.layout() != at::kStrided) {
      throw UsageError("[SumReducer] the gradient of \"" + name + "\" is sparse. Fix: to_dense().");
    }
    impl_->parameters.push_back({name, parameter});
  }
}

void SumReducer::reduce() {
  reduce_async();
  wait();
}

void SumReducer::reduce_async() {
  impl_->start();
}

void SumReducer::wait() {
  for (auto& pending : std::exchange(impl_->pending, {})) {
    pending.wait();
  }
}

}  // namespace retape::dist
