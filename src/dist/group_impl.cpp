#include "dist/group_impl.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace retape::dist::detail {

std::optional<c10::Stream> stream_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) {
    return std::nullopt;
  }
  return c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device());
}

GroupImpl::GroupImpl(
    std::string name, std::vector<int> ranks, int index, GroupOptions options, std::shared_ptr<Courier> courier)
    : name(std::move(name)), ranks(std::move(ranks)), index(index), options(options), courier_(std::move(courier)) {
  if (options.timeout < Milliseconds(1)) {
    throw UsageError("[Group] \"" + this->name + "\": a timeout of " + std::to_string(options.timeout.count()) +
                     " ms. Fix: at least 1 ms.");
  }
}

at::Device carrier(const c10d::ProcessGroup& process_group, at::Device device) {
  const auto known = process_group.getDeviceTypes();
  const auto same = [&](const at::Device& each) { return each.type() == device.type(); };
  if (known.empty() || std::any_of(known.begin(), known.end(), same)) {
    return device;
  }
  return c10::impl::VirtualGuardImpl(known.front().type()).getDevice();
}

Group GroupImpl::making(
    std::string name,
    std::vector<int> ranks,
    int index,
    GroupOptions options,
    StorePtr store,
    StorePtr words,
    std::function<Milliseconds(const Board& words)> to_come,
    std::function<ProcessGroupPtr(const StorePtr&)> make) {
  auto courier = Courier::of({std::move(store), std::move(words), {}, ranks, index, options.store_host});
  const auto impl =
      std::make_shared<GroupImpl>(std::move(name), std::move(ranks), index, options, std::move(courier));
  const auto come = std::make_shared<Job>();
  come->call.text = "make group \"" + impl->name + "\" of " + ranks_text(impl->ranks);
  come->timeout = std::move(to_come);
  come->move = [courier = impl->courier_.get(), make = std::move(make)](auto*) { courier->make_process_group(make); };
  impl->start(come).wait();
  // Those who have connected go on when all have: nobody is left in a group of which others know nothing.
  const auto connected = std::make_shared<Job>();
  connected->call.text = "connect group \"" + impl->name + "\"";
  impl->start(connected).wait();
  return Group(impl);
}

Pending GroupImpl::start(std::shared_ptr<Job> job) {
  if (!courier_) {
    if (job->move) {
      const at::NoGradGuard no_grad;
      job->move(nullptr);
    }
    job->done = true;
  } else {
    job->call.group = name;
    if (job->call.timeout.count() == 0) {
      job->call.timeout = options.timeout;
    }
    courier_->start(job);
  }
  return Pending(shared_from_this(), std::move(job));
}

void GroupImpl::wait(Job& job) {
  if (courier_) {
    courier_->wait(job);
  }
  if (job.finish) {
    // After what the courier has put on it.
    const auto stream = job.stream ? c10::OptionalStreamGuard(*job.stream) : c10::OptionalStreamGuard();
    std::exchange(job.finish, nullptr)();
  }
}

const std::shared_ptr<GroupImpl>& GroupImpl::of(const Group& group) {
  return group.impl_;
}

at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

at::ScalarType on_wire(at::ScalarType dtype, std::optional<at::ScalarType> wire) {
  return wire && c10::isFloatingType(dtype) ? *wire : dtype;
}

std::string shape_of(const at::Tensor& tensor) {
  std::string text = std::string(c10::toString(tensor.scalar_type())) + "[";
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    text += (i ? "," : "") + std::to_string(tensor.size(i));
  }
  return text + "]";
}

Pending start(const Group& group, std::shared_ptr<Job> job) {
  return GroupImpl::of(group)->start(std::move(job));
}

Pending sum_of(
    const Group& group,
    Call call,
    const at::Tensor& like,
    std::function<at::Tensor()> make,
    std::function<void(const at::Tensor&)> use) {
  auto job = std::make_shared<Job>();
  job->call = std::move(call);
  job->stream = stream_of(like);
  const auto total = std::make_shared<at::Tensor>();
  job->move = [total, make = std::move(make), timeout = group.timeout()](c10d::ProcessGroup* process_group) {
    *total = make();
    if (process_group) {
      c10d::AllreduceOptions options;
      options.reduceOp = c10d::ReduceOp::SUM;
      options.timeout = timeout;
      const auto carried = total->to(carrier(*process_group, total->device()));
      std::vector<at::Tensor> tensors{as_real(carried)};
      process_group->getBackend(carried.device().type())->allreduce(tensors, options)->wait();
      *total = carried.to(total->device());
    }
  };
  job->finish = [total, use = std::move(use)] { use(*total); };
  return start(group, std::move(job));
}

}  // namespace retape::dist::detail
