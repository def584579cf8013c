#include "record/op_observer.h"

#include "record/pipeline.h"
#include "record/recorder.h"

#include <ATen/SavedTensorHooks.h>
#include <torch/csrc/autograd/graph_task.h>

namespace retape::detail {

namespace {

size_t scopes_open() {
  const auto* recorder = Recorder::current();
  return recorder == nullptr ? 0 : recorder->depth();
}

size_t hooks_pushed() {
  return at::SavedTensorDefaultHooks::get_tls_state().stack.size();
}

}  // namespace

std::vector<std::shared_ptr<Watch::Place>>& Watch::of_this_thread() {
  thread_local std::vector<std::shared_ptr<Place>> places;
  return places;
}

Watch* Watch::current() {
  auto& places = of_this_thread();
  while (!places.empty()) {
    if (auto* watch = places.back()->watch.load(std::memory_order_relaxed)) {
      return watch;
    }
    places.pop_back();
    see_ops(false);
  }
  return nullptr;
}

Watch::Watch()
    : place_(std::make_shared<Place>(this)),
      outer_(current()),
      scopes_outside_(scopes_open()),
      hooks_outside_(hooks_pushed()),
      graph_task_(torch::autograd::get_current_graph_task_id()) {
  of_this_thread().push_back(place_);
  see_ops(true);
}

Watch::~Watch() {
  place_->watch.store(nullptr);
  current();  // on its own thread this forgets it
}

bool Watch::off() const {
  return torch::autograd::get_current_graph_task_id() != graph_task_;
}

bool Watch::innermost() const {
  return scopes_open() <= scopes_outside_ && hooks_pushed() <= hooks_outside_;
}

}  // namespace retape::detail
