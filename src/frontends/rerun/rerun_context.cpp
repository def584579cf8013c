#include "frontends/rerun/rerun_context.h"

#include "check/replay_checker.h"
#include "tape/fault.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

namespace retape::detail {

namespace {

// What a second run finds where a fault is injected; `wanted` where none is.
Surroundings faulty(Surroundings wanted) {
  for (auto& autocast : wanted.autocast) {
    if (injected(Fault::AutocastDropped) && autocast.enabled) {
      autocast.enabled = false;
      hit();
    } else if (injected(Fault::AutocastDtype) && autocast.enabled) {
      autocast.dtype = autocast.dtype == c10::kBFloat16 ? c10::kHalf : c10::kBFloat16;
      hit();
    }
  }
  if (injected(Fault::GradModeOff)) {
    wanted.flags.grad_mode = false;
    hit();
  }
  return wanted;
}

}  // namespace

Conditions::Conditions(const std::string& call, bool generators)
    : surroundings_(Surroundings::now()),
      checker_(ReplayChecker::now()),
      generators_(generators) {
  if (checker_ && !checker_->closely()) {
    checker_.reset();  // a second run compares what it saves anyway
  }
  if (checker_) {
    call_ = checker_->called(call);
  }
  if (generators_) {
    // Kernels that the dispatcher does not see draw from this one, if from any.
    draws_.push_back(Draw::of(at::detail::getDefaultCPUGenerator()));
  }
}

void Conditions::note(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  if (!generators_ || !op.random) {
    return;
  }
  auto source = Draw::generator_of(op, args);
  if (!source.defined()) {
    return;
  }
  const bool known = std::any_of(
      draws_.begin(), draws_.end(), [&](const auto& draw) { return draw->source() == source; });
  if (!known) {
    draws_.push_back(Draw::of(std::move(source)));
  }
}

Conditions::Again::Again(const Conditions& conditions)
    : conditions_(conditions),
      surroundings_(faulty(conditions.surroundings_)) {
  for (const auto& draw : conditions_.draws_) {
    later_.push_back(draw->rewind());
  }
  if (conditions_.checker_) {
    ++conditions_.call_->reruns;
    for (auto& [kind, what] : differences(conditions_.surroundings_, Surroundings::now())) {
      conditions_.checker_->found({kind, "", conditions_.call_->name, "", std::move(what)});
    }
  }
}

Conditions::Again::~Again() {
  for (size_t i = 0; i < later_.size(); ++i) {
    conditions_.draws_[i]->restore(later_[i]);
  }
}

}  // namespace retape::detail
