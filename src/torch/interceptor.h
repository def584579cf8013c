// The two dispatch keys that show Retape every op, and their switch.
//
//   op ──▶ kKey ──▶ autocast, autograd ──▶ kernel
//                                      └─▶ Python ──▶ __torch_dispatch__ ──▶ op ──▶ kHandlerKey ──▶
//                                      kernel
//
// While a handler of a subclass or a mode runs, torch excludes every key above Python, kKey among
// them. What the handler calls, and backend kernels of custom ops, come by way of kHandlerKey.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>

namespace retape::detail {

// "Out-of-core key for deferred module initialization": above autocast and autograd, registered by
// nobody in torch 2.13 (the one library that used it, torchdistx, is archived).
constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

// Of the same library, free too: the highest key below Python.
constexpr c10::DispatchKey kHandlerKey = c10::DispatchKey::Fake;

// What happens to an op that comes by. `below`: the keys that are still to come. `in_handler`: it
// came by way of kHandlerKey. The handler redispatches it.
using OpHandler = void (*)(
    const c10::OperatorHandle&, c10::DispatchKeySet below, torch::jit::Stack*, bool in_handler);
void set_op_handler(OpHandler to);  // before anything is switched on

// Keys that are left for an op that is looked at here and nowhere below.
c10::DispatchKeySet to_kernel(c10::DispatchKeySet below);

// Per thread, counted. While on, every op of the thread comes to the interceptor first.
void set_intercepting(bool on);

// In the whole process there is something that ops of any thread may touch
// (residency/refillable.h). Threads that are not switched on see it from their next
// intercept_here(true) on.
extern std::atomic<bool> intercepting_everywhere;
inline bool is_intercepting_everywhere() {
  return intercepting_everywhere.load(std::memory_order_relaxed);
}

// Per thread, not counted: on besides.
void intercept_here(bool on);

// Runs ops of this thread in place of their kernels (dry runs, FLOP counts); null: nothing does.
using KernelRunner = void (*)(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*);
void set_kernel_runner(KernelRunner to);

// While it lives, ops of this thread go past the interceptor: they are part of an op that it has
// seen, or Retape's own.
class NotIntercepted {
 public:
  NotIntercepted();
  ~NotIntercepted();
  NotIntercepted(const NotIntercepted&) = delete;
  NotIntercepted& operator=(const NotIntercepted&) = delete;

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
  const bool before_;
};

}  // namespace retape::detail
