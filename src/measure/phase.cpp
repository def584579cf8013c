#include "measure/phase.h"

#include "measure/running_ops.h"
#include "record/recorder.h"

#include <retape/memory_region.h>

#include <torch/csrc/autograd/graph_task.h>

namespace retape::detail {

namespace {

thread_local Phase phase_set = Phase::Forward;
thread_local const std::string* region_set = nullptr;
thread_local const std::string* region_named = nullptr;  // by a MemoryRegion

}  // namespace

Phase current_phase() {
  if (phase_set == Phase::Forward && torch::autograd::get_current_graph_task_id() >= 0) {
    return runs_forward_in_backward() ? Phase::Replay : Phase::Backward;
  }
  return phase_set;
}

bool is_replaying() {
  return phase_set == Phase::Replay;
}

std::string current_region() {
  if (region_set != nullptr) {
    return *region_set;
  }
  auto* recorder = Recorder::current();
  const bool records = recorder != nullptr && recorder->depth() > 0;  // 0: it begins or ends
  if (records && !recorder->in_other_backward() && !recorder->region().name.empty()) {
    return recorder->region().name;
  }
  return region_named != nullptr ? *region_named : std::string();
}

PhaseGuard::PhaseGuard(Phase phase) : before_(phase_set), region_before_(region_set) {
  phase_set = phase;
}

PhaseGuard::~PhaseGuard() {
  phase_set = before_;
  region_set = region_before_;
}

void PhaseGuard::in(const std::string& region) {
  region_set = &region;
}

}  // namespace retape::detail

namespace retape {

MemoryRegion::MemoryRegion(std::string name) : name_(std::move(name)), outer_(detail::region_named) {
  detail::region_named = &name_;
}

MemoryRegion::~MemoryRegion() {
  detail::region_named = outer_;
}

}  // namespace retape
