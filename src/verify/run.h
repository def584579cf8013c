// Run: one training of a fresh start, plain or recomputed, in one order of backward passes.
#pragma once

#include "frontends/rerun/ambient_state.h"
#include "verify/generators.h"

#include <retape/verify.h>

#include <optional>

namespace retape::detail {

struct Order {
  std::string name;
  std::vector<size_t> losses;  // one backward for each; empty: one for their sum
  int backwards = 1;           // of the sum, one after another
  int forwards = 1;            // before the first backward

  bool joint() const { return losses.empty(); }
};

// "backward" first; the others if they are asked for.
std::vector<Order> orders_of(const std::vector<std::string>& losses, bool all);

// A tensor of a run, as it was then.
struct Taken {
  int step;
  std::string what;
  std::string name;
  at::Tensor tensor;
};

struct Trace {
  std::vector<Taken> tensors;
  std::vector<std::string> losses;  // that require a gradient, of one forward
};

// Makes runs that begin alike, and leaves generators and settings as it found them.
class Runs {
 public:
  Runs(const Subject& subject, const VerifyOptions& options, const Backward& backward);
  ~Runs();
  Runs(const Runs&) = delete;
  Runs& operator=(const Runs&) = delete;

  // No graph is left when it returns.
  Trace plain(const Order& order);
  Trace recomputed(const Order& order);

 private:
  Start begin();
  Trace run(const Order& order, bool recompute);
  void step(const Order& order, bool recompute, int number, const Start& start, Trace& trace) const;
  std::vector<Outcome> forward(const Order& order, bool recompute, const Start& start) const;
  std::vector<at::Tensor> take_losses(
      int step, const std::vector<Outcome>& outcomes, Trace& trace) const;
  void backward(const Order& order, const std::vector<at::Tensor>& losses) const;
  void take_what_is_left(int step, const Start& start, Trace& trace) const;

  const Subject& subject_;
  const VerifyOptions& options_;
  const Backward& backward_;
  const Surroundings surroundings_;
  const GeneratorStates before_;            // as the caller has them
  std::optional<GeneratorStates> started_;  // when the first start had been made
};

}  // namespace retape::detail
