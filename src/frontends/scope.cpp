#include <retape/binding.h>
#include <retape/eager.h>
#include <retape/error.h>
#include <retape/recompute.h>

#include "frontends/install.h"
#include "policy/policy_rules.h"
#include "record/recorder.h"
#include "tape/errors.h"

#include <ATen/SavedTensorHooks.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <utility>

namespace retape {

namespace detail {

namespace {

std::atomic<StandAsideCheck> stand_aside_check{nullptr};

bool stands_aside() {
  const auto check = stand_aside_check.load();
  return check != nullptr && check();
}

}  // namespace

}  // namespace detail

void set_stand_aside_check(StandAsideCheck check) {
  detail::stand_aside_check.store(check);
}

Recompute::Recompute(Policy policy, std::string name, bool timed)
    : scope_(std::make_shared<detail::Scope>(std::move(policy.rules_), std::move(name))) {
  scope_->region->timed = timed;
  scope_->hooks_outside = at::SavedTensorDefaultHooks::get_tls_state().stack.size();
  if (is_eager() || (scope_->hooks_outside > 0 && detail::stands_aside())) {
    scope_->inert = true;
    return;
  }
  detail::install();
  scope_->graph_task = torch::autograd::get_current_graph_task_id();
  detail::Recorder::open(scope_);
}

Recompute::~Recompute() {
  // A scope that is destroyed on another thread than its own stays open there: that thread's
  // state is out of reach, and close() would have said so.
  if (scope_->open && scope_->thread == std::this_thread::get_id()) {
    detail::Recorder::unwind(*scope_);
  }
}

void Recompute::close() {
  const std::string who = "[Recompute::close] " + detail::where(scope_->region.get());
  if (!scope_->open && !scope_->inert) {
    throw UsageError(
        who + "the scope is closed already. Fix: close it once, or let it go out of scope.");
  }
  // A thread may have the id of one that has ended, and then has not got its scopes.
  const bool elsewhere = scope_->thread != std::this_thread::get_id();
  if (elsewhere || (!scope_->inert && detail::Recorder::current() == nullptr)) {
    throw UsageError(
        who +
        "opened on another thread: expected that thread to close it. Fix: open and close a "
        "scope on the thread that runs forward.");
  }
  if (std::exchange(scope_->inert, false)) {
    return;
  }
  const bool innermost = &detail::Recorder::current()->scope() == scope_.get();
  detail::Recorder::unwind(*scope_);
  if (!innermost) {
    throw UsageError(
        who +
        "a scope that was opened inside it was still open, and is closed now. Fix: close inner "
        "scopes first.");
  }
}

Stats Recompute::stats() const {
  return scope_->region->stats();
}

std::vector<KeptOp> Recompute::kept_ops() const {
  return scope_->region->kept_ops.all();
}

// Also in a backward inside the scope, whose hooks may write.
void will_write(const at::Tensor& tensor) {
  if (auto* recorder = detail::Recorder::current(); recorder != nullptr && !recorder->in_op()) {
    recorder->about_to_write(tensor);
  }
}

void will_write(const c10::Storage& storage) {
  if (auto* recorder = detail::Recorder::current(); recorder != nullptr && !recorder->in_op()) {
    recorder->about_to_write(storage, c10::VariableVersion());
  }
}

bool is_recording() {
  return detail::Recorder::current() != nullptr;
}

}  // namespace retape
