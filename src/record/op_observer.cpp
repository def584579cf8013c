#include "record/op_observer.h"

#include "record/pipeline.h"
#include "record/recorder.h"

#include <ATen/SavedTensorHooks.h>
#include <torch/csrc/autograd/graph_task.h>

namespace retape::detail {

namespace {

thread_local Watch* innermost_watch = nullptr;

size_t scopes_open() {
  const auto* recorder = Recorder::current();
  return recorder == nullptr ? 0 : recorder->depth();
}

size_t hooks_pushed() {
  return at::SavedTensorDefaultHooks::get_tls_state().stack.size();
}

}  // namespace

Watch* Watch::current() {
  return innermost_watch;
}

Watch::Watch()
    : outer_(innermost_watch),
      scopes_outside_(scopes_open()),
      hooks_outside_(hooks_pushed()),
      graph_task_(torch::autograd::get_current_graph_task_id()) {
  innermost_watch = this;
  see_ops(true);
}

Watch::~Watch() {
  see_ops(false);
  innermost_watch = outer_;
}

bool Watch::off() const {
  return torch::autograd::get_current_graph_task_id() != graph_task_;
}

bool Watch::innermost() const {
  return scopes_open() <= scopes_outside_ && hooks_pushed() <= hooks_outside_;
}

}  // namespace retape::detail
