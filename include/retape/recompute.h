// Recompute: a scope in which autograd forgets activations and backward replays recorded ops.
//
//   at::Tensor loss;
//   {
//     retape::Recompute scope(retape::Policy::cheap(), "encoder");
//     loss = model->forward(batch);
//   }
//   loss.backward();   // replays what it needs, bit for bit
//
// Ownership: tensors are the caller's. The graph that autograd builds owns what is kept; when the
// graph dies, with or without backward, so does everything the scope held for it.
// Threads: a scope belongs to the thread that opened it and records only there. Backward may run
// on any thread, any number of times, in any order.
// Failure: an exception that leaves the scope closes it; what was recorded stays usable.
// Cost: a fraction of a microsecond per op while open; nothing at all when no scope is open.
#pragma once

#include <retape/api.h>
#include <retape/policy.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace retape {

// Counted while the scope is open and, for replays, as long as its graph lives.
struct Stats {
  uint64_t ops_recorded = 0;    // ops whose recipe went on the tape
  uint64_t values_saved = 0;    // distinct values autograd saved: kept + dropped
  uint64_t values_kept = 0;     // of those, held in memory (parameters and inputs among them)
  uint64_t values_dropped = 0;  // of those, forgotten
  uint64_t bytes_kept = 0;
  uint64_t bytes_given = 0;     // the part of bytes_kept that the scope did not make itself
  uint64_t bytes_dropped = 0;
  uint64_t anchors = 0;         // values kept only to cut replay chains
  uint64_t bytes_anchored = 0;
  uint64_t window_bytes = 0;    // the most that "cheap" held at once before deciding what to keep of it
  uint64_t ops_replayed = 0;
  uint64_t replay_ns = 0;       // time that backward spent in replay; of timed scopes only
};

// A custom op whose results autograd has saved. They are kept: nobody has called it replayable
// (replayable.h).
struct KeptOp {
  std::string op;       // "mylib::scan"
  uint64_t values = 0;  // results that could be dropped otherwise
  uint64_t bytes = 0;
};

namespace detail {
struct Region;
}

class RETAPE_API Recompute {
 public:
  // `timed`: replay reads the clock, twice for each value that backward asks for.
  explicit Recompute(Policy policy = Policy::full(), std::string name = "", bool timed = false);
  ~Recompute();
  Recompute(const Recompute&) = delete;
  Recompute& operator=(const Recompute&) = delete;

  // Ends the scope early. UsageError if a scope inside it is still open: then both are closed. The
  // same if it is closed already, or on another thread than the one that opened it: then it stays as
  // it was.
  void close();

  // Valid during and after the scope; ops_replayed and replay_ns go on counting in backward.
  Stats stats() const;

  // What calling custom ops replayable would let this scope drop, by name.
  std::vector<KeptOp> kept_ops() const;

 private:
  std::shared_ptr<detail::Region> region_;
};

// Call it inside a scope before something that the dispatcher does not see (a kernel of your own, numpy)
// writes to `tensor`: recipes that read it keep what it holds now, and what it holds then is kept.
RETAPE_API void will_write(const at::Tensor& tensor);

// True on a thread that has a scope open.
RETAPE_API bool is_recording();

}  // namespace retape
