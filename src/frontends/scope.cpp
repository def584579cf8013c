#include <retape/binding.h>
#include <retape/eager.h>
#include <retape/error.h>
#include <retape/recompute.h>

#include "frontends/install.h"
#include "record/recorder.h"
#include "tape/errors.h"
#include "tape/region.h"

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

void KeptOps::add(const std::string& op, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& kept = by_name_[op];
  kept.op = op;
  kept.values += 1;
  kept.bytes += bytes;
}

std::vector<KeptOp> KeptOps::all() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<KeptOp> ops;
  for (const auto& [name, kept] : by_name_) {
    ops.push_back(kept);
  }
  return ops;
}

Region::Region(Policy policy, std::string name)
    : policy(std::move(policy)),
      name(std::move(name)) {}

Stats Region::stats() const {
  Stats stats;
  stats.ops_recorded = counters.ops_recorded.get();
  stats.values_saved = counters.values_saved.get();
  stats.values_dropped = counters.values_dropped.get();
  stats.values_kept = stats.values_saved - stats.values_dropped;
  stats.bytes_dropped = counters.bytes_dropped.get();
  stats.bytes_kept = counters.bytes_saved.get() - stats.bytes_dropped;
  stats.bytes_given = counters.bytes_given.get();
  stats.anchors = counters.anchors.get();
  stats.bytes_anchored = counters.bytes_anchored.get();
  stats.window_bytes = counters.window_bytes.get();
  stats.ops_replayed = counters.ops_replayed.get();
  stats.replay_ns = counters.replay_ns.get();
  return stats;
}

}  // namespace detail

void set_stand_aside_check(StandAsideCheck check) {
  detail::stand_aside_check.store(check);
}

Recompute::Recompute(Policy policy, std::string name, bool timed)
    : region_(std::make_shared<detail::Region>(std::move(policy), std::move(name))) {
  region_->timed = timed;
  region_->hooks_outside = at::SavedTensorDefaultHooks::get_tls_state().stack.size();
  if (is_eager() || (region_->hooks_outside > 0 && detail::stands_aside())) {
    region_->inert = true;
    return;
  }
  detail::install();
  region_->graph_task = torch::autograd::get_current_graph_task_id();
  detail::Recorder::open(region_);
}

Recompute::~Recompute() {
  // A scope that is destroyed on another thread than its own stays open there: that thread's
  // state is out of reach, and close() would have said so.
  if (region_->open && region_->thread == std::this_thread::get_id()) {
    detail::Recorder::unwind(*region_);
  }
}

void Recompute::close() {
  const std::string who = "[Recompute::close] " + detail::where(region_.get());
  if (!region_->open && !region_->inert) {
    throw UsageError(
        who + "the scope is closed already. Fix: close it once, or let it go out of scope.");
  }
  // A thread may have the id of one that has ended, and then has not got its scopes.
  const bool elsewhere = region_->thread != std::this_thread::get_id();
  if (elsewhere || (!region_->inert && detail::Recorder::current() == nullptr)) {
    throw UsageError(
        who +
        "opened on another thread: expected that thread to close it. Fix: open and close a "
        "scope on the thread that runs forward.");
  }
  if (std::exchange(region_->inert, false)) {
    return;
  }
  const bool innermost = &detail::Recorder::current()->region() == region_.get();
  detail::Recorder::unwind(*region_);
  if (!innermost) {
    throw UsageError(
        who +
        "a scope that was opened inside it was still open, and is closed now. Fix: close inner "
        "scopes first.");
  }
}

Stats Recompute::stats() const {
  return region_->stats();
}

std::vector<KeptOp> Recompute::kept_ops() const {
  return region_->kept_ops.all();
}

void will_write(const at::Tensor& tensor) {
  if (auto* recorder = detail::Recorder::current(); recorder != nullptr && !recorder->off()) {
    recorder->about_to_write(tensor);
  }
}

bool is_recording() {
  return detail::Recorder::current() != nullptr;
}

}  // namespace retape
