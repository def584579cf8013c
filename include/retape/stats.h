// What is counted in a scope.
#pragma once

#include <cstdint>
#include <string>

namespace retape {

// Counted while the scope is open and, for replays, as long as its graph lives.
struct Stats {
  uint64_t ops_recorded = 0;    // ops whose recipe went on the tape
  uint64_t values_saved = 0;    // distinct values autograd saved: kept + dropped
  uint64_t values_kept = 0;     // of those, held in memory (parameters and inputs among them)
  uint64_t values_dropped = 0;  // of those, forgotten
  uint64_t bytes_kept = 0;
  uint64_t bytes_given = 0;  // the part of bytes_kept that the scope did not make itself
  uint64_t bytes_dropped = 0;
  uint64_t anchors = 0;  // values kept only to cut replay chains
  uint64_t bytes_anchored = 0;
  uint64_t window_bytes =
      0;  // the most that was held at once until it was decided what to keep of it
  uint64_t ops_replayed = 0;
  uint64_t replay_ns = 0;  // time that backward spent in replay; of timed scopes only
};

// A custom op whose results autograd has saved. They are kept: nobody has called it replayable
// (replayable.h).
struct KeptOp {
  std::string op;       // "mylib::scan"
  uint64_t values = 0;  // results that could be dropped otherwise
  uint64_t bytes = 0;
};

}  // namespace retape
