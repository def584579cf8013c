// verify: runs a step plain and recomputed, from the same state, and compares bit for bit.
//
//   auto verdict = retape::verify(*model, [&] { return loss_of(model, batch); });   //
//   verify_module.h if (!verdict) throw retape::Error(verdict.explain());
//
// Equal means: outputs, losses, every gradient, parameters, buffers and the states of generators
// have the same bits (NaN is NaN whatever its payload; +0 and -0 differ), and it could have come
// out otherwise. Where it could not, the verdict is Vacuous: nothing was replayed, a region that
// was asked for never ran, a gradient is missing, all zero or all NaN in both runs, or the plain
// step differs from itself. Different: a tensor is not the same, the recomputed run raised, or,
// with every tensor the same, replay did something that forward did not (check.h). With a tolerance
// the latter does not decide.
//
// Afterwards generators, grad mode and settings are as they were. Tensors are the start's: the
// gradients of its leaves are cleared before every step and at the end.
//
// Threads: called from one; the step may use others. Failure: an exception of the plain run passes
// through; one of the recomputed run is a difference, and its text is in the verdict.
#pragma once

#include <retape/api.h>
#include <retape/check.h>
#include <retape/compare.h>
#include <retape/policy.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace retape {

using NamedTensor = std::pair<std::string, at::Tensor>;
using NamedTensors = std::vector<NamedTensor>;

// What forward gives. Losses are scalars; backward runs from them, and they are compared too.
struct Outcome {
  NamedTensors losses;
  NamedTensors outputs;
};

// A fresh start: the same parameters, buffers and inputs every time one is made.
struct Start {
  std::function<Outcome()> forward;
  NamedTensors leaves;  // parameters and inputs: their gradients, and what they are afterwards
  std::function<NamedTensors()> buffers;  // as they are then; may be empty
  std::function<void()> optimize;  // one step of an optimizer made for this start; may be empty
  std::vector<at::Generator> generators;  // private ones; the default ones are always looked after
  std::function<NamedTensors()>
      states;  // of generators that are not torch's, as they are then; may be empty
};
using Subject = std::function<Start()>;

struct VerifyOptions {
  Policy policy = Policy::full();
  bool scope =
      true;       // a scope with this policy around forward; false: the step recomputes by itself
  int steps = 1;  // forward, backward and optimize, so many times; compared after each
  // Also losses apart in each order (of more than four: each first and last once), backward twice,
  // two forwards then one backward.
  bool orders = false;
  bool plain_twice = true;                         // does the plain step equal itself?
  std::map<c10::ScalarType, Tolerance> tolerance;  // empty: bitwise
  std::vector<std::string> regions;                // names that must have run and been recomputed
  std::vector<std::string>
      may_be_dead;  // leaves without gradient, or with zeros: names, "*" at the end
};

struct RETAPE_API Verdict {
  enum class Kind { Equal, Different, Vacuous };

  Kind kind = Kind::Vacuous;
  std::vector<Difference> differences;
  std::vector<Finding> findings;     // the first one is where it came from
  std::vector<std::string> vacuous;  // why
  std::string error;                 // that the recomputed run ended with
  bool with_tolerance = false;
  uint64_t tensors_compared = 0;
  uint64_t values_checked = 0;  // replayed values, against forward's
  uint64_t ops_replayed = 0;
  uint64_t reruns = 0;
  std::vector<std::string> orders;  // that were run
  std::vector<KeptOp>
      kept_ops;  // custom ops that are kept; replayable() would let a run drop so much
  std::vector<std::string>
      skipped;  // other orders than "backward" in which both runs raise: the plain one's text

  // One more reason why it proves nothing: what was equal is vacuous then.
  void add_vacuous(std::string reason);

  explicit operator bool() const { return kind == Kind::Equal; }
  std::string explain() const;  // lines for people
};

RETAPE_API const char* name_of(Verdict::Kind kind);  // "equal", "different", "vacuous"

// UsageError: inside a scope or under Eager, a loss of more than one number, a leaf that is none.
RETAPE_API Verdict verify(const Subject& subject, const VerifyOptions& options = {});

namespace detail {

// For language bindings: runs one backward, in the way of their language.
using Backward = std::function<void(const at::Tensor& root, bool retain_graph)>;
RETAPE_API Verdict
verify(const Subject& subject, const VerifyOptions& options, const Backward& backward);

}  // namespace detail

}  // namespace retape
