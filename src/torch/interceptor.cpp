// One of the places that change global state of libtorch (the others: engine_front.cpp and
// variable_hooks.cpp): boxed fallbacks for kKey and kHandlerKey, which do nothing until a thread
// includes the keys.
#include "torch/interceptor.h"

#include <retape/binding.h>

#include <torch/library.h>

#include <atomic>

namespace retape::detail {

namespace {

constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kKey);
constexpr c10::DispatchKeySet kBelowHandlers(c10::DispatchKeySet::FULL_AFTER, kHandlerKey);

std::atomic<OpHandler> handler{nullptr};
thread_local int users = 0;  // scopes and observers
thread_local KernelRunner runner = nullptr;
thread_local bool passing = false;  // a NotIntercepted is alive

void include_keys() {
  const bool on = users > 0 || is_intercepting_everywhere();
  c10::impl::tls_set_dispatch_key_included(kKey, on);
  c10::impl::tls_set_dispatch_key_included(kHandlerKey, on || runner != nullptr);
}

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  handler.load(std::memory_order_relaxed)(op, keys & kBelow, stack, /*in_handler=*/false);
}

void intercept_below_handlers(
    const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto below = keys & kBelowHandlers;
  if (!passing && (users > 0 || is_intercepting_everywhere())) {
    // A runner sees the op next, at this same key.
    const auto keys_left = runner == nullptr ? below : below.add(kHandlerKey);
    handler.load(std::memory_order_relaxed)(op, keys_left, stack, /*in_handler=*/true);
  } else if (runner != nullptr) {
    runner(op, below, stack);
  } else {
    op.redispatchBoxed(below, stack);
  }
}

}  // namespace

std::atomic<bool> intercepting_everywhere{false};

void set_op_handler(OpHandler to) {
  handler.store(to);
}

c10::DispatchKeySet to_kernel(c10::DispatchKeySet below) {
  return runner == nullptr ? below.remove(kHandlerKey) : below;
}

void set_intercepting(bool on) {
  users += on ? 1 : -1;
  include_keys();
}

void intercept_here(bool on) {
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
    : guard_(
          runner == nullptr ? c10::DispatchKeySet({kKey, kHandlerKey}) : c10::DispatchKeySet(kKey)),
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
  m.fallback(
      torch::CppFunction::makeFromBoxedFunction<&retape::detail::intercept_below_handlers>());
}
