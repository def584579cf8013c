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
#include <retape/stats.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace retape {

namespace detail {
struct Scope;
}

class RETAPE_API Recompute {
 public:
  // `timed`: replay reads the clock, twice for each value that backward asks for.
  explicit Recompute(Policy policy = Policy::full(), std::string name = "", bool timed = false);
  ~Recompute();
  Recompute(const Recompute&) = delete;
  Recompute& operator=(const Recompute&) = delete;

  // Ends the scope early. UsageError if a scope inside it is still open: then both are closed. The
  // same if it is closed already, or on another thread than the one that opened it: then it stays
  // as it was.
  void close();

  // Valid during and after the scope; ops_replayed and replay_ns go on counting in backward.
  Stats stats() const;

  // What calling custom ops replayable would let this scope drop, by name.
  std::vector<KeptOp> kept_ops() const;

 private:
  std::shared_ptr<detail::Scope> scope_;
};

// Call it inside a scope before something that the dispatcher does not see (a kernel of your own,
// numpy) writes to `tensor`: recipes that read it keep what it holds now, and what it holds then is
// kept.
RETAPE_API void will_write(const at::Tensor& tensor);
RETAPE_API void will_write(const c10::Storage& storage);

// True on a thread that has a scope open.
RETAPE_API bool is_recording();

}  // namespace retape
