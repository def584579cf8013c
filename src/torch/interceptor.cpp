// One of the places that change global state of libtorch (the others: recompute/engine.cpp and
// recompute/variable_front.cpp): boxed fallbacks for kKey and kHandlerKey, which do nothing until a
// thread includes the keys.
#include "torch/interceptor.h"

#include "frontends/output_discard/discardable_output.h"
#include "tape/each_tensor.h"
#include "record/recorder.h"
#include "record/op_observer.h"

#include <retape/binding.h>

#include <torch/library.h>

namespace retape::detail {

namespace {

constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kKey);
constexpr c10::DispatchKeySet kBelowHandlers(c10::DispatchKeySet::FULL_AFTER, kHandlerKey);

thread_local int users = 0;                   // scopes and watches
thread_local KernelRunner runner = nullptr;
thread_local bool passing = false;            // a NotIntercepted is alive

void include_keys() {
  const bool on = users > 0 || any_output();
  c10::impl::tls_set_dispatch_key_included(kKey, on);
  c10::impl::tls_set_dispatch_key_included(kHandlerKey, on || runner != nullptr);
}

// A wrapper's handler, or a mode's, calls ops on plain tensors: those are recorded, not the call.
bool is_wrapped_call(const torch::jit::Stack& stack, size_t arguments) {
  if (c10::impl::tls_local_dispatch_key_set().included_.has(c10::DispatchKey::Python)) {
    return true;
  }
  bool wrapped = false;
  for (const auto& arg : torch::jit::last(stack, arguments)) {
    each_tensor(arg, [&](const at::Tensor& tensor, int) {
      wrapped |= tensor.defined() && is_wrapper(tensor);
    });
  }
  return wrapped;
}

std::vector<at::Tensor> written_by(const OpInfo& info, const torch::jit::Stack& stack) {
  std::vector<at::Tensor> tensors;
  const auto args = torch::jit::last(stack, info.arguments);
  for (const auto index : info.writes) {
    each_tensor(args[index], [&](const at::Tensor& tensor, int) {
      if (tensor.defined()) {
        tensors.push_back(tensor);
      }
    });
  }
  return tensors;
}

Recorder* recorder_that_is_on() {
  auto* recorder = Recorder::current();
  return recorder == nullptr || recorder->off() ? nullptr : recorder;
}

Watch* watch_that_is_on() {
  auto* watch = Watch::current();
  return watch == nullptr || watch->off() ? nullptr : watch;
}

// Keys that are left for an op that is looked at here and nowhere below.
c10::DispatchKeySet to_kernel(c10::DispatchKeySet below) {
  return runner == nullptr ? below.remove(kHandlerKey) : below;
}

// `below`: the keys that are still to come. A composite op goes on with both keys on, so that its parts
// are seen.
void look_at(
    const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack, bool in_handler) {
  auto* recorder = recorder_that_is_on();
  auto* watch = watch_that_is_on();
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
    NotIntercepted passing_by;
    op.redispatchBoxed(to_kernel(below), stack);
    return;
  }
  const OpInfo& info = op_info(op);
  const bool in_parts = in_handler ? info.is_composite : info.passes(below) || is_wrapped_call(*stack, info.arguments);
  if (in_parts) {
    std::vector<at::Tensor> written;
    if (recorder != nullptr && !info.writes.empty() && !info.is_composite) {
      written = written_by(info, *stack);
    }
    if (info.has_own_autograd) {
      for (const auto& tensor : written) {
        recorder->about_to_write(tensor);  // before kernels above the backend's move its version
      }
    }
    op.redispatchBoxed(below, stack);
    for (const auto& tensor : written) {
      recorder->adopt_version(tensor, info.rebinds);
    }
    if (watch != nullptr) {
      watch->between();
    }
    return;
  }
  NotIntercepted passing_by;
  if (watch != nullptr) {
    watch->before(info, *stack);
  }
  if (recorder == nullptr) {
    op.redispatchBoxed(to_kernel(below), stack);
  } else if (info.makes_nothing()) {
    recorder->pass(op, info, to_kernel(below), stack);
  } else {
    recorder->run(op, info, to_kernel(below), stack);
    if (info.make_lean != nullptr && !in_handler && recorder->region().policy.impl().lean) {
      info.make_lean(torch::jit::peek(*stack, 0, info.returns).toTensor());
    }
  }
  if (watch != nullptr) {
    watch->after(info, *stack);
  }
}

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  look_at(op, keys & kBelow, stack, /*in_handler=*/false);
}

void intercept_below_handlers(
    const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto below = keys & kBelowHandlers;
  if (!passing && (users > 0 || any_output())) {
    // A runner sees the op next, at this same key.
    look_at(op, runner == nullptr ? below : below.add(kHandlerKey), stack, /*in_handler=*/true);
  } else if (runner != nullptr) {
    runner(op, below, stack);
  } else {
    op.redispatchBoxed(below, stack);
  }
}

}  // namespace

void set_intercepting(bool on) {
  users += on ? 1 : -1;
  include_keys();
}

void intercept_for_outputs(bool on) {
  if (users == 0) {
    c10::impl::tls_set_dispatch_key_included(kKey, on);
    c10::impl::tls_set_dispatch_key_included(kHandlerKey, on || runner != nullptr);
  }
}

void set_kernel_runner(KernelRunner to) {
  runner = to;
  include_keys();
}

NotIntercepted::NotIntercepted()
    : guard_(runner == nullptr ? c10::DispatchKeySet({kKey, kHandlerKey}) : c10::DispatchKeySet(kKey)),
      before_(passing) {
  passing = true;
}

NotIntercepted::~NotIntercepted() {
  passing = before_;
}

}  // namespace retape::detail

std::vector<c10::DispatchKey> retape::intercepted_keys() {
  return {detail::kKey, detail::kHandlerKey};
}

TORCH_LIBRARY_IMPL(_, DeferredInit, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&retape::detail::intercept>());
}

TORCH_LIBRARY_IMPL(_, Fake, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&retape::detail::intercept_below_handlers>());
}
