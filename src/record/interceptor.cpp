// One of the two places that change global state of libtorch (the other: recompute/engine.cpp):
// a boxed fallback for kKey, which does nothing until a thread includes the key.
#include "record/interceptor.h"

#include "output_discard/output.h"
#include "record/recorder.h"
#include "rerun/watch.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

namespace retape::detail {

namespace {

constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kKey);

// A wrapper's handler, or a mode's, calls ops on plain tensors: those are recorded, not the call.
bool is_wrapped_call(const torch::jit::Stack& stack, size_t arguments) {
  if (c10::impl::tls_local_dispatch_key_set().included_.has(c10::DispatchKey::Python)) {
    return true;
  }
  for (const auto& arg : torch::jit::last(stack, arguments)) {
    if (arg.isTensor() && arg.toTensor().defined() && is_wrapper(arg.toTensor())) {
      return true;
    }
  }
  return false;
}

Recorder* recorder_that_is_on() {
  auto* recorder = Recorder::current();
  return recorder == nullptr || recorder->off() ? nullptr : recorder;
}

Watch* watch_that_is_on() {
  auto* watch = Watch::current();
  return watch == nullptr || watch->off() ? nullptr : watch;
}

thread_local int users = 0;  // scopes and watches

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  auto* recorder = recorder_that_is_on();
  auto* watch = watch_that_is_on();
  const auto below = keys & kBelow;
  if (any_output()) {
    before_op(op_info(op), *stack);
  } else {
    intercept_for_outputs(false);  // those are back, or gone
  }
  if (recorder == nullptr && watch == nullptr) {
    if (any_output() && op_info(op).passes_through) {
      op.redispatchBoxed(below, stack);  // its parts are looked at
      return;
    }
    c10::impl::ExcludeDispatchKeyGuard guard(kKey);
    op.redispatchBoxed(below, stack);
    return;
  }
  const OpInfo& info = op_info(op);
  if (info.passes(below) || is_wrapped_call(*stack, info.arguments)) {
    op.redispatchBoxed(below, stack);  // the key stays on: what it calls is seen
    if (watch != nullptr) {
      watch->between();
    }
    return;
  }
  c10::impl::ExcludeDispatchKeyGuard guard(kKey);
  if (watch != nullptr) {
    watch->before(info, *stack);
  }
  if (recorder == nullptr) {
    op.redispatchBoxed(below, stack);
  } else if (info.makes_nothing()) {
    recorder->pass(op, info, below, stack);
  } else {
    recorder->run(op, info, below, stack);
    if (info.make_lean != nullptr && recorder->region().policy.impl().lean) {
      info.make_lean(torch::jit::peek(*stack, 0, info.returns).toTensor());
    }
  }
  if (watch != nullptr) {
    watch->after(info, *stack);
  }
}

}  // namespace

void set_intercepting(bool on) {
  users += on ? 1 : -1;
  c10::impl::tls_set_dispatch_key_included(kKey, users > 0 || any_output());
}

void intercept_for_outputs(bool on) {
  if (users == 0) {
    c10::impl::tls_set_dispatch_key_included(kKey, on);
  }
}

}  // namespace retape::detail

TORCH_LIBRARY_IMPL(_, DeferredInit, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&retape::detail::intercept>());
}
