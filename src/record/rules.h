// Rules: what recording asks of a policy.
//
// A policy implements them (policy/policy_rules.h). They are immutable and shared by any number of
// scopes; every call comes from the recording thread.
#pragma once

#include "record/decider.h"
#include "tape/op_info.h"

#include <retape/decision.h>

#include <ATen/core/stack.h>

#include <memory>
#include <string>

namespace retape::detail {

// What an op's name decides about its results. Obey: the user has named it to be dropped, whatever
// that costs. Ask: the policy looks at each result.
enum class Birth : uint8_t { Keep, Drop, Obey, Ask };

// A question about one op, made before the op runs, because the op consumes its arguments, and
// asked when it has ended.
class OpQuestion {
 public:
  virtual ~OpQuestion();

  // With the op's results on top of the stack. Not under a lock: a user's function may run
  // anything.
  virtual Decision ask(const std::string& region, const torch::jit::Stack& stack) const = 0;
};

class Rules {
 public:
  virtual ~Rules();

  virtual Birth birth(const OpInfo& op) const = 0;
  virtual Decision decide(const ValueInfo& value) const = 0;  // of Birth::Ask

  // Null, and free, for a policy that does not look at an op's arguments.
  virtual std::unique_ptr<OpQuestion> question(
      const OpInfo& op, const torch::jit::Stack& stack) const = 0;

  // Null for a policy that decides everything at birth.
  virtual std::unique_ptr<Decider> decider(Region& region, Shelf& shelf) const = 0;

  bool drops_nothing = false;     // recipes are not written
  bool edits_graph = true;        // rules that run after an op apply (OpInfo::after_op)
  bool keeps_boundaries = true;   // what a nested scope leaves to this one is kept
  bool reports_kept_ops = false;  // ops that are kept only because they are not replayable
  bool may_hold_results = false;  // in the place of larger roots (balance.cpp)
  bool holds_anchors = false;     // values it keeps may be dropped again when the scope ends
};

}  // namespace retape::detail
