#include "record/saved_tensors.h"

#include "record/op_observer.h"
#include "record/recorder.h"
#include "record/token.h"
#include "torch/variable_hooks.h"

#include <ATen/SavedTensorHooks.h>

namespace retape::detail {

namespace {

bool is_asked(const Watch& watch) {
  return !at::SavedTensorDefaultHooks::get_tls_state().is_tracing && watch.innermost() &&
      !watch.off();
}

// Hooks that the user pushed inside the scope are the innermost ones, so they win.
bool is_asked(Recorder& recorder) {
  const auto& hooks = at::SavedTensorDefaultHooks::get_tls_state();
  return !hooks.is_tracing && hooks.stack.size() <= recorder.scope().hooks_outside &&
      !recorder.in_other_backward();
}

}  // namespace

bool hooks_of_this_thread(std::unique_ptr<torch::autograd::SavedVariableHooks>& hooks) {
  if (auto* watch = Watch::current(); watch != nullptr && is_asked(*watch)) {
    hooks = watch->hooks();
    if (hooks) {
      return true;
    }
  }
  auto* recorder = Recorder::current();
  if (recorder == nullptr || !is_asked(*recorder)) {
    return false;
  }
  const auto* tensor = take_tensor_being_saved();
  if (tensor == nullptr || recorder->may_drop(*tensor)) {
    hooks = std::make_unique<Token>(*recorder);
  }
  return true;
}

}  // namespace retape::detail
