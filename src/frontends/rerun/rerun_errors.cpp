#include "frontends/rerun/rerun_errors.h"

#include "tape/errors.h"

namespace retape::detail {

void throw_rerun_differs(
    const RerunOptions& options, const std::string& what, const std::string& details) {
  const auto& region = options.name;
  const auto* generators = options.preserve_rng_state
      ? ""
      : "preserve_rng_state=True, if it draws random numbers; else ";
  raise(ReplayMismatch(
      "[checkpoint] " + (region.empty() ? "" : "region \"" + region + "\": ") + what +
      ". Fix: " + generators +
      "make the function depend on its arguments alone, or use method=\"replay\", which does not "
      "run it again." +
      details));
}

void throw_overlap_in_group(const std::string& region, const OpInfo* op) {
  raise(UsageError(
      "[checkpoint] " + (region.empty() ? "" : "region \"" + region + "\": ") +
      "two backward calls that overlap in one GraphExecGroup: expected each to need other saved "
      "tensors, "
      "got a second one that needs what " +
      (op == nullptr ? "a custom function" : op->name.name) +
      " saved. Fix: leave the group between them, or use method=\"replay\", where they may "
      "overlap."));
}

}  // namespace retape::detail
