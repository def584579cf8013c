#include "memory/phase.h"

#include <torch/csrc/autograd/graph_task.h>

namespace retape::detail {

namespace {

thread_local Phase phase_set = Phase::Forward;

}  // namespace

Phase current_phase() {
  if (phase_set == Phase::Forward && torch::autograd::get_current_graph_task_id() >= 0) {
    return Phase::Backward;
  }
  return phase_set;
}

PhaseGuard::PhaseGuard(Phase phase) : before_(phase_set) {
  phase_set = phase;
}

PhaseGuard::~PhaseGuard() {
  phase_set = before_;
}

}  // namespace retape::detail
