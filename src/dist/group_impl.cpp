#include "dist/group_impl.h"

#include "dist/sigpipe.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>

namespace retape::dist::detail {

using Clock = std::chrono::steady_clock;

namespace {

// How long after its time a store may still answer; a roll call takes a second of it.
constexpr Milliseconds kGrace{2000};
// How often a group looks whether another rank has failed.
constexpr Milliseconds kPulse{250};

std::optional<c10::Stream> stream_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) {
    return std::nullopt;
  }
  return c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device());
}

}  // namespace

// Shared with its thread, which outlives the group where a store no longer answers.
struct GroupImpl::Courier {
  Courier(const GroupImpl& group, c10::intrusive_ptr<c10d::ProcessGroup> process_group)
      : group_name(group.name),
        options(group.options),
        process_group(std::move(process_group)),
        agreement(
            this->process_group->getStore()->clone(),
            group.name,
            group.ranks,
            group.index,
            options.timeout,
            [this] { expect(Milliseconds(0)); }),
        sentry(agreement.roll(this->process_group->getStore()->clone())) {}

  const std::string group_name;
  const GroupOptions options;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  Agreement agreement;
  RollCall sentry;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Job>> jobs;  // the first one is under way
  bool ending = false;
  std::exception_ptr broken;
  // Until when the thread must have got on with what it is doing; a store whose host is stopped may
  // never answer.
  Clock::time_point until = Clock::time_point::max();

  void expect(Milliseconds longest) {
    const std::lock_guard guard(mutex);
    until = Clock::now() + longest + kGrace;
  }

  std::exception_ptr store_is_gone(const Call& call, const std::string& reason) const {
    std::vector<int> host;
    std::string who = "Its launcher hosts it";
    if (options.store_host) {
      host.push_back(*options.store_host);
      who = ranks_text(host) + " hosts it";
    }
    return std::make_exception_ptr(CollectiveError(
        "[" + group_name + "] call " + std::to_string(agreement.sequence()) + ", " + call.text +
            ": the store does not answer" + reason + ". " + who +
            ", and has ended or is stopped. Nothing that was given has changed. Fix: look at its output.",
        host));
  }

  std::exception_ptr failed(const Call& call, const std::string& reason) {
    try {
      agreement.fail(call, reason);
    } catch (const CollectiveError&) {
      return std::current_exception();
    } catch (const std::exception&) {
      return store_is_gone(call, "");
    }
  }

  std::exception_ptr make(Job& job) {
    expect(options.timeout);
    try {
      agreement.reach(job.call);
    } catch (const CollectiveError&) {
      return std::current_exception();
    } catch (const std::exception&) {
      return store_is_gone(job.call, "");
    }
    if (!job.move) {
      return nullptr;
    }
    expect(options.timeout);
    const c10::OptionalStreamGuard stream = job.stream ? c10::OptionalStreamGuard(*job.stream) : c10::OptionalStreamGuard();
    const at::NoGradGuard no_grad;
    try {
      job.move(process_group.get());
    } catch (const std::exception& error) {
      // The first line: what follows is a stack.
      const std::string reason = error.what();
      return failed(job.call, reason.substr(0, reason.find('\n')));
    }
    return nullptr;
  }

  // On a thread of its own: answers the roll for a rank that is stuck in a call or busy elsewhere.
  void watch() {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, kPulse, [&] { return ending || broken; })) {
      const bool in_a_call = !jobs.empty();
      lock.unlock();
      std::exception_ptr error;
      try {
        if (sentry.called()) {
          error = answer(in_a_call);
        }
      } catch (const std::exception&) {
        return;  // the store is gone: calls will say so
      }
      lock.lock();
      if (error) {
        broken = broken ? broken : error;
        return;
      }
    }
  }

  // In a call, that call finds out itself who is to blame.
  std::exception_ptr answer(bool in_a_call) {
    if (in_a_call) {
      sentry.answer(Answer::InACall);
      return nullptr;
    }
    sentry.call(Answer::Elsewhere);
    const auto said = sentry.said();
    return std::make_exception_ptr(
        said ? *said : CollectiveError("[" + group_name + "] another rank has failed. Fix: look at its output.", {}));
  }

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      until = Clock::time_point::max();
      changed.wait(lock, [&] { return ending || !jobs.empty(); });
      if (jobs.empty()) {
        return;
      }
      const auto job = jobs.front();
      auto error = broken;
      if (!error) {
        lock.unlock();
        error = make(*job);
        lock.lock();
      }
      if (error && !broken) {
        broken = error;
      }
      job->error = error;
      job->done = true;
      jobs.pop_front();
      changed.notify_all();
    }
  }
};

GroupImpl::GroupImpl(std::string name, std::vector<int> ranks, int index, GroupOptions options)
    : name(std::move(name)), ranks(std::move(ranks)), index(index), options(options) {}

void GroupImpl::connect(c10::intrusive_ptr<c10d::ProcessGroup> process_group) {
  const SigpipeBlocked in_the_thread;
  courier_ = std::make_shared<Courier>(*this, std::move(process_group));
  thread_ = std::thread([courier = courier_] { courier->run(); });
  sentry_ = std::thread([courier = courier_] { courier->watch(); });
}

GroupImpl::~GroupImpl() {
  if (!courier_) {
    return;
  }
  bool idle = false;
  {
    const std::lock_guard guard(courier_->mutex);
    courier_->ending = true;
    courier_->changed.notify_all();
    idle = courier_->jobs.empty();
  }
  // A call that nobody waited for may never end, where its store no longer answers.
  for (auto* thread : {&thread_, &sentry_}) {
    idle ? thread->join() : thread->detach();
  }
}

Pending GroupImpl::start(std::shared_ptr<Job> job) {
  if (!courier_) {
    if (job->move) {
      const at::NoGradGuard no_grad;
      job->move(nullptr);
    }
    job->done = true;
  } else {
    const std::lock_guard guard(courier_->mutex);
    courier_->jobs.push_back(job);
    courier_->changed.notify_all();
  }
  return Pending(shared_from_this(), std::move(job));
}

void GroupImpl::wait(Job& job) {
  if (courier_) {
    auto& courier = *courier_;
    std::unique_lock lock(courier.mutex);
    while (!job.done) {
      if (courier.broken && courier.jobs.front()->done) {
        std::rethrow_exception(courier.broken);
      }
      const auto until = courier.until;
      if (until == Clock::time_point::max()) {
        courier.changed.wait_for(lock, kGrace);
      } else {
        courier.changed.wait_until(lock, until);
        if (!job.done && Clock::now() >= courier.until) {
          courier.broken = courier.store_is_gone(job.call, " in time");
          std::rethrow_exception(courier.broken);
        }
      }
    }
    if (job.error) {
      std::rethrow_exception(job.error);
    }
  }
  if (job.finish) {
    std::exchange(job.finish, nullptr)();
  }
}

const std::shared_ptr<GroupImpl>& GroupImpl::of(const Group& group) {
  return group.impl_;
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
      std::vector<at::Tensor> tensors{total->is_complex() ? at::view_as_real(*total) : *total};
      process_group->getBackend(total->device().type())->allreduce(tensors, options)->wait();
    }
  };
  job->finish = [total, use = std::move(use)] { use(*total); };
  return start(group, std::move(job));
}

}  // namespace retape::dist::detail
