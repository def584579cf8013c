#include <retape/dist/reducer.h>

#include "dist/bucket.h"
#include "dist/group_impl.h"
#include "dist/mutated.h"

#include <retape/dist/contribution.h>

#include <ATen/Functions.h>

#include <iterator>
#include <map>
#include <set>

namespace retape::dist {

using detail::Bucket;
using detail::Call;
using detail::Entry;

struct SumReducer::Impl {
  Group group;
  ReducerOptions options;
  std::vector<Entry> entries = {};
  std::set<std::string> names = {};
  // Parameters of add_gradients, whose gradients may be undefined here.
  std::vector<Entry> parameters = {};

  // Since the last wait: memory that is to be written, by whom; zeros for gradients that were
  // undefined here; buckets on their way, and their sums.
  std::map<const c10::TensorImpl*, std::string> tensors = {};
  std::map<uintptr_t, std::pair<uintptr_t, std::string>> memory = {};  // begin to end
  std::vector<std::pair<at::Tensor, at::Tensor>> filled = {};          // parameter, gradient
  struct Started {
    std::shared_ptr<Bucket> bucket;
    Pending pending;
    std::shared_ptr<at::Tensor> sum;
  };
  std::vector<Started> started = {};

  void claim(const std::string& name, const at::Tensor& tensor) {
    const auto refuse = [&](const std::string& other) {
      throw UsageError(
          "[SumReducer] \"" + name + "\" is the memory of \"" + other +
          "\": it would be summed twice. Fix: add what " + "is tied once.");
    };
    const auto [same, first] = tensors.emplace(tensor.unsafeGetTensorImpl(), name);
    if (!first) {
      refuse(same->second);
    }
    // Of others it cannot be told cheaply. They are safe: all are read before any is written.
    if (tensor.numel() == 0 || !tensor.is_non_overlapping_and_dense()) {
      return;
    }
    const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    const auto end = begin + tensor.nbytes();
    const auto next = memory.upper_bound(begin);
    if (next != memory.end() && next->first < end) {
      refuse(next->second.second);
    }
    if (next != memory.begin() && std::prev(next)->second.first > begin) {
      refuse(std::prev(next)->second.second);
    }
    memory.emplace(begin, std::pair(end, name));
  }

  void insert(const std::string& name, const at::Tensor& tensor) {
    if (!names.insert(name).second) {
      throw UsageError(
          "[SumReducer] \"" + name + "\" was added already: it would be summed twice.");
    }
    claim(name, tensor);
    const auto change = detail::pass(Place::Sum, name, group.name(), group.size());
    if (change.mutation != Mutation::None) {
      const at::NoGradGuard no_grad;
      tensor.copy_(detail::mutated(tensor.detach(), change, group.size()));
    }
    entries.push_back({name, tensor});
  }

  // Which gradients there are on any rank: those are summed, with zeros where there is none here.
  void add_those_that_exist() {
    if (parameters.empty()) {
      return;
    }
    const auto given = std::exchange(parameters, {});
    const auto exists = at::zeros({static_cast<int64_t>(given.size())}, at::kInt);
    for (size_t i = 0; i < given.size(); ++i) {
      exists[i] = given[i].tensor.grad().defined() ? 1 : 0;
    }
    detail::sum_in_place(group, "which gradients there are: " + detail::text_of(given), exists)
        .wait();
    for (size_t i = 0; i < given.size(); ++i) {
      const auto& [name, parameter] = given[i];
      if (exists[i].item<int>() == 0) {
        continue;
      }
      auto gradient = parameter.grad();
      if (!gradient.defined()) {
        gradient = at::zeros_like(parameter.detach());
        filled.emplace_back(parameter, gradient);
      }
      insert(name, gradient);
    }
  }

  void start() {
    add_those_that_exist();
    const auto complaint = options.check_finite ? detail::not_finite(entries, options.wire)
                                                : std::string();
    auto buckets = detail::make_buckets(std::exchange(entries, {}), options.bucket_bytes);
    names.clear();
    for (auto& each : buckets) {
      const auto bucket = std::make_shared<Bucket>(std::move(each));
      const auto sum = std::make_shared<at::Tensor>();
      const auto dtype = detail::on_wire(bucket->dtype(), options.wire);
      const auto as = dtype == bucket->dtype() ? "" : std::string(" as ") + c10::toString(dtype);
      auto pending = detail::sum_of(
          group,
          Call{
              detail::sum_text(options.order) + " " + detail::text_of(bucket->entries) + as,
              complaint},
          bucket->entries.front().tensor,
          [bucket, dtype] { return bucket->flatten(dtype); },
          [sum](const at::Tensor& flat) { *sum = flat; },
          options.order);
      started.push_back({bucket, std::move(pending), sum});
    }
  }

  void finish() {
    tensors.clear();
    memory.clear();
    const auto gradients = std::exchange(filled, {});
    auto all = std::exchange(started, {});
    for (auto& each : all) {
      each.pending.wait();
    }
    // Only now: where one of them has failed, nothing has changed.
    for (const auto& [bucket, pending, sum] : all) {
      bucket->copy_back(*sum);
    }
    for (const auto& [parameter, gradient] : gradients) {
      parameter.mutable_grad() = gradient;
    }
  }
};

SumReducer::SumReducer(Group group, ReducerOptions options)
    : impl_(new Impl{std::move(group), options}) {
  detail::check_wire("SumReducer", options.wire);
}
SumReducer::~SumReducer() = default;
SumReducer::SumReducer(SumReducer&&) noexcept = default;
SumReducer& SumReducer::operator=(SumReducer&&) noexcept = default;

void SumReducer::add(const std::string& name, const Partial<at::Tensor>& partial) {
  detail::check_summable("SumReducer", name, partial.value());
  detail::check_writable("SumReducer", name, partial.value());
  impl_->insert(name, partial.value());
}

void SumReducer::add_gradients(const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  std::map<const c10::TensorImpl*, std::string> known;
  for (const auto& [name, parameter] : impl_->parameters) {
    known.emplace(parameter.unsafeGetTensorImpl(), name);
  }
  for (const auto& [name, parameter] : parameters) {
    if (parameter.grad().defined()) {
      detail::check_summable("SumReducer", name, parameter.grad());
      detail::check_writable("SumReducer", name, parameter.grad());
    }
    // Here, where all ranks see it: gradients there may be on some of them only.
    if (const auto [same, is_new] = known.emplace(parameter.unsafeGetTensorImpl(), name); !is_new) {
      throw UsageError(
          "[SumReducer] \"" + name + "\" is the parameter \"" + same->second +
          "\": it would be summed twice. Fix: add " + "what is tied once.");
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
  impl_->finish();
}

Pending sum_async(
    const std::string& name,
    const Partial<at::Tensor>& partial,
    const Group& group,
    const std::string& contents) {
  const auto change = detail::pass(Place::Sum, name, group.name(), group.size(), 0, contents);
  return detail::sum_in_place(group, contents.empty() ? name : contents, partial.value(), change);
}

}  // namespace retape::dist
