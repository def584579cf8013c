#include "measure/phase.h"

#include "measure/running_ops.h"
#include "record/recorder.h"
#include "tape/activity.h"

#include <retape/memory_region.h>

#include <torch/csrc/autograd/graph_task.h>

namespace retape::detail {

namespace {

thread_local const std::string* region_named = nullptr;  // by a MemoryRegion
thread_local bool trains = false;

}  // namespace

bool trains_here() {
  trains |= Recorder::current() != nullptr || torch::autograd::get_current_graph_task_id() >= 0 ||
      is_replaying();
  return trains;
}

void note_training_thread() {
  trains = true;
}

Phase current_phase() {
  if (is_replaying()) {
    return Phase::Replay;
  }
  if (torch::autograd::get_current_graph_task_id() < 0) {
    return Phase::Forward;
  }
  return runs_forward_in_backward() ? Phase::Replay : Phase::Backward;
}

bool is_replaying() {
  return Activity::of_this_thread().replays;
}

std::string current_region() {
  if (const auto* replayed = Activity::of_this_thread().region) {
    return *replayed;
  }
  auto* recorder = Recorder::current();
  const bool records = recorder != nullptr && recorder->depth() > 0;  // 0: it begins or ends
  if (records && !recorder->in_other_backward() && !recorder->region().name.empty()) {
    return recorder->region().name;
  }
  return region_named != nullptr ? *region_named : std::string();
}

}  // namespace retape::detail

namespace retape {

MemoryRegion::MemoryRegion(std::string name)
    : name_(std::move(name)),
      outer_(detail::region_named) {
  detail::region_named = &name_;
}

MemoryRegion::~MemoryRegion() {
  detail::region_named = outer_;
}

}  // namespace retape
