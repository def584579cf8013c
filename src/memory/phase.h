// What a thread is doing, for the memory timeline.
#pragma once

#include <retape/memory.h>

namespace retape::detail {

Phase current_phase();

class PhaseGuard {
 public:
  explicit PhaseGuard(Phase phase);
  ~PhaseGuard();
  PhaseGuard(const PhaseGuard&) = delete;
  PhaseGuard& operator=(const PhaseGuard&) = delete;

 private:
  Phase before_;
};

}  // namespace retape::detail
