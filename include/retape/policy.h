// Policies: the rule that says which values are kept until backward and which are dropped.
//
// A policy is a value: make one, refine it, hand it to any number of scopes.
//
//   auto p = retape::Policy::full().keep_ops({"aten::mm", "aten::addmm"});
//   retape::Recompute scope(p);
//
// A kept value stays in memory; a dropped one is replayed from kept values when backward asks for
// it. Whatever a policy says, a value that cannot be replayed exactly is kept.
#pragma once

#include <retape/api.h>
#include <retape/decision.h>

#include <memory>
#include <string>
#include <vector>

namespace retape {

namespace detail {
class PolicyRules;
}

class RETAPE_API Policy {
 public:
  // Keep everything, as plain autograd does. Saves and in-place writes are still followed (so that
  // statistics are real and scopes nest), but no recipes are written: nothing will be replayed.
  static Policy none();

  // Drop everything that can be replayed. In a scope around a whole model, values at narrow places
  // are kept as anchors so that replay chains stay short: memory about the square root of the
  // whole, and every op is replayed at most once per backward. `anchors(false)` keeps none: then
  // only what the region was given is held.
  static Policy full();

  // Drop only what pointwise, norm, softmax, cast, copy and reduction ops can replay from values
  // that are kept; which ones, an exact min-cut over the recorded graph decides: the fewest bytes.
  static Policy cheap();

  // `decide` is called once for each new value; it runs inside forward, so keep it quick.
  static Policy function(PolicyFunction decide);

  // The rule of torch's selective checkpointing: `decide` is called once for each op that runs in
  // the scope, views included, and decides on all of its results. Ops that `decide` itself calls
  // run below autograd and are not recorded.
  static Policy selective(OpPolicyFunction decide);

  // "none", "full" or "cheap"; anything else is a UsageError that lists them.
  static Policy named(const std::string& name);

  // Refinements; each returns a changed copy. Names are dispatcher names ("aten::mm", or
  // "aten::add.Tensor" for one overload, "aten::mm.default" for the one without a name). A name
  // that matches no op is a UsageError, and so is a composite op, which never reaches the tape by
  // that name.
  Policy keep_ops(const std::vector<std::string>& names) const;
  Policy drop_ops(const std::vector<std::string>& names) const;
  Policy anchors(bool on) const;

  // Backward nodes of matrix products, products of elements, silu, gelu and softmax that let go of
  // what they have used and write over gradients that nobody else holds: the same bits from less
  // memory, whatever is dropped. On unless switched off.
  Policy lean(bool on) const;

  // "full", "cheap, keep aten::mm": for errors and reports.
  std::string describe() const;

 private:
  friend class Recompute;
  explicit Policy(std::shared_ptr<const detail::PolicyRules> rules);
  std::shared_ptr<const detail::PolicyRules> rules_;
};

}  // namespace retape
