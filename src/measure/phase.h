// What a thread is doing, for the memory timeline.
#pragma once

#include <retape/memory.h>

#include <string>

namespace retape::detail {

Phase current_phase();  // peers' recomputation is Replay too
bool is_replaying();    // Retape is

// Name of the region that is recorded or replayed; empty elsewhere.
std::string current_region();

class PhaseGuard {
 public:
  explicit PhaseGuard(Phase phase);
  void in(const std::string& region);  // outlives the guard
  ~PhaseGuard();
  PhaseGuard(const PhaseGuard&) = delete;
  PhaseGuard& operator=(const PhaseGuard&) = delete;

 private:
  Phase before_;
  const std::string* region_before_;
};

}  // namespace retape::detail
