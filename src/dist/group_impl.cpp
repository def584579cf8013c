#include "dist/group_impl.h"

#include "dist/mutated.h"

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
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
    std::string name,
    std::vector<int> ranks,
    int index,
    GroupOptions options,
    ProcessGroupPtr process_group)
    : name(std::move(name)),
      ranks(std::move(ranks)),
      index(index),
      options(options),
      process_group_(std::move(process_group)) {
  if (options.timeout < Milliseconds(1)) {
    throw UsageError(
        "[Group] \"" + this->name + "\": a timeout of " + std::to_string(options.timeout.count()) +
        " ms. Fix: at least 1 ms.");
  }
  if (process_group_) {
    queue_ = CollectiveQueue::of(process_group_, this->ranks, options.store_host);
    queue_->hold();
  }
}

GroupImpl::~GroupImpl() {
  if (queue_ && !queue_->is_here()) {
    static_cast<void>(new auto(process_group_));  // ending joins threads, and a fork has none
  } else if (queue_) {
    process_group_.reset();
    queue_->release();
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

Pending GroupImpl::start(std::shared_ptr<Job> job) {
  if (queue_) {
    job->call.group = name;
    job->call.timeout = options.timeout;
    job->process_group = process_group_;
    queue_->start(job);
  } else {
    const at::NoGradGuard no_grad;
    if (job->send) {
      job->send(nullptr);
    }
    if (job->land) {
      job->land();
    }
    job->done = true;
  }
  return Pending(shared_from_this(), std::move(job));
}

void GroupImpl::withdraw() {
  if (queue_) {
    queue_->withdraw();
  }
}

void GroupImpl::abandon() {
  if (queue_ && queue_->is_here()) {
    CollectiveQueue::abandon({queue_});
  }
}

void GroupImpl::wait(Job& job) {
  if (queue_) {
    queue_->wait(job);
  }
  if (job.finish) {
    // After what the queue's thread has put on it.
    const auto stream = job.stream ? c10::OptionalStreamGuard(*job.stream)
                                   : c10::OptionalStreamGuard();
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

void check_wire(const char* who, std::optional<at::ScalarType> wire) {
  if (wire && !c10::isFloatingType(*wire)) {
    throw UsageError(
        "[" + std::string(who) + "] wire: expected a floating point dtype, got " +
        c10::toString(*wire) + ".");
  }
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

std::string sum_text(Order order) {
  return order == Order::ByRank ? "sum by rank" : "sum";
}

Works gather_into(
    c10d::ProcessGroup& process_group,
    const at::Tensor& own,
    std::vector<at::Tensor>& all,
    Milliseconds timeout) {
  c10d::AllgatherOptions options;
  options.timeout = timeout;
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int i = 0; i < process_group.getSize(); ++i) {
    all.push_back(at::empty_like(own));
    outputs[0].push_back(as_real(all.back()));
  }
  std::vector<at::Tensor> inputs{as_real(own)};
  return {process_group.getBackend(own.device().type())->allgather(outputs, inputs, options)};
}

Pending sum_of(
    const Group& group,
    Call call,
    const at::Tensor& like,
    std::function<at::Tensor()> make,
    std::function<void(const at::Tensor&)> use,
    Order order) {
  struct Sum {
    at::Tensor total;               // this rank's part, until all have arrived
    at::Device device{at::kCPU};    // where it was made
    std::vector<at::Tensor> parts;  // of all ranks, to be added here
  };
  const auto sum = std::make_shared<Sum>();
  auto job = std::make_shared<Job>();
  job->call = std::move(call);
  job->stream = stream_of(like);
  job->send = [=, make = std::move(make), timeout = group.timeout()](
                  c10d::ProcessGroup* process_group) -> Works {
    sum->total = make();
    sum->device = sum->total.device();
    if (!process_group) {
      return {};
    }
    sum->total = sum->total.to(carrier(*process_group, sum->device));
    if (order == Order::ByRank) {
      return gather_into(*process_group, sum->total, sum->parts, timeout);
    }
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::SUM;
    options.timeout = timeout;
    std::vector<at::Tensor> tensors{as_real(sum->total)};
    return {process_group->getBackend(sum->total.device().type())->allreduce(tensors, options)};
  };
  job->land = [sum] {
    for (size_t i = 0; i < sum->parts.size(); ++i) {
      i == 0 ? sum->total.copy_(sum->parts[i]) : sum->total.add_(sum->parts[i]);
    }
    sum->total = sum->total.to(sum->device);
  };
  job->finish = [sum, use = std::move(use)] { use(sum->total); };
  return start(group, std::move(job));
}

void check_dense(const char* function, const std::string& name, const at::Tensor& tensor) {
  const char* what = !tensor.defined()
      ? "undefined here, and may not be on other ranks. Fix: zeros."
      : tensor.layout() != at::kStrided ? "sparse. Fix: to_dense()."
      : tensor.key_set().has(c10::DispatchKey::Python)
      ? "of a class of its own, as a DTensor is. Fix: the memory that is here, to_local()."
      : nullptr;
  if (what) {
    throw UsageError("[" + std::string(function) + "] \"" + name + "\" is " + what);
  }
}

void check_summable(const char* function, const std::string& name, const at::Tensor& tensor) {
  check_dense(function, name, tensor);
  using enum at::ScalarType;
  switch (c10::toRealValueType(tensor.scalar_type())) {
    case Float:
    case Double:
    case Half:
    case BFloat16:
    case Byte:
    case Char:
    case Int:
    case Long:
      return;
    default:
      break;
  }
  throw UsageError(
      "[" + std::string(function) + "] \"" + name + "\" is " + c10::toString(tensor.scalar_type()) +
      ", which transports do not add. Fix: a dtype that they do, like Float or Int.");
}

void check_writable(const char* function, const std::string& name, const at::Tensor& tensor) {
  const char* what = at::has_internal_overlap(tensor) == at::MemOverlap::Yes
      ? "has elements that share memory, as an expanded one has. Fix: contiguous()."
      : tensor.is_inference() && !c10::InferenceMode::is_enabled()
      ? "was made in inference mode, and cannot be written outside of it. Fix: clone()."
      : nullptr;
  if (what) {
    throw UsageError("[" + std::string(function) + "] \"" + name + "\" " + what);
  }
}

Pending sum_in_place(
    const Group& group,
    const std::string& name,
    const at::Tensor& tensor,
    Change change,
    Order order) {
  return sum_of(
      group,
      {sum_text(order) + " \"" + name + "\" " + shape_of(tensor)},
      tensor,
      [tensor, change, size = group.size()] {
        return mutated(tensor.detach(), change, size).clone(at::MemoryFormat::Contiguous);
      },
      [tensor](const at::Tensor& total) {
        const at::NoGradGuard no_grad;
        tensor.copy_(total);
      },
      order);
}

}  // namespace retape::dist::detail
