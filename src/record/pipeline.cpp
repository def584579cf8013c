#include "record/pipeline.h"

#include "record/op_observer.h"
#include "record/recorder.h"
#include "residency/refillable.h"
#include "tape/each_tensor.h"
#include "torch/interceptor.h"

#include <atomic>

namespace retape::detail {

namespace {

std::atomic<RefillableObserver> refillable_observer{nullptr};

void before_op_on_refillable(const OpInfo& info, const torch::jit::Stack& stack) {
  if (const auto observer = refillable_observer.load(std::memory_order_relaxed)) {
    observer(info, stack);
  }
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

// `below`: the keys that are still to come. A composite op goes on with both keys on, so that its
// parts are seen.
void look_at(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet below,
    torch::jit::Stack* stack,
    bool in_handler) {
  auto* recorder = recorder_that_is_on();
  auto* watch = watch_that_is_on();
  if (any_refillable()) {
    before_op_on_refillable(op_info(op), *stack);
  } else {
    intercept_here(false);  // those are back, or gone
  }
  const OpInfo& info = op_info(op);
  const auto goes_in_parts = [&] {
    return in_handler ? info.is_composite
                      : info.passes(below) || is_wrapped_call(*stack, info.arguments);
  };
  if (recorder == nullptr && watch == nullptr) {
    auto* around = Recorder::current();
    const bool in_backward = around != nullptr && around->in_other_backward();
    if ((any_refillable() && info.passes_through) || (in_backward && goes_in_parts())) {
      op.redispatchBoxed(below, stack);  // its parts are looked at
      return;
    }
    NotIntercepted passing_by;
    if (in_backward) {
      around->pass_in_backward(op, info, to_kernel(below), stack);
    } else {
      op.redispatchBoxed(to_kernel(below), stack);
    }
    return;
  }
  if (goes_in_parts()) {
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
    if (info.after_op != nullptr && !in_handler && recorder->scope().rules->edits_graph) {
      info.after_op(torch::jit::peek(*stack, 0, info.returns).toTensor());
    }
  }
  if (watch != nullptr) {
    watch->after(info, *stack);
  }
}

}  // namespace

void see_ops(bool on) {
  set_op_handler(&look_at);
  set_intercepting(on);
}

void see_ops_of_refillables() {
  set_op_handler(&look_at);
  intercept_here(true);
}

void set_refillable_observer(RefillableObserver observer) {
  refillable_observer.store(observer);
}

}  // namespace retape::detail
