#include "memory/phase.h"

#include "record/recorder.h"

#include <torch/csrc/autograd/graph_task.h>

namespace retape::detail {

namespace {

thread_local Phase phase_set = Phase::Forward;
thread_local const std::string* region_set = nullptr;

}  // namespace

Phase current_phase() {
  if (phase_set == Phase::Forward && torch::autograd::get_current_graph_task_id() >= 0) {
    return Phase::Backward;
  }
  return phase_set;
}

std::string current_region() {
  if (region_set != nullptr) {
    return *region_set;
  }
  auto* recorder = Recorder::current();
  const bool records = recorder != nullptr && recorder->depth() > 0;  // 0: it begins or ends
  return records && !recorder->in_other_backward() ? recorder->region().name : std::string();
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
