#include "check/describe_difference.h"

#include "torch/untracked_guard.h"

#include <retape/compare.h>

#include <ATen/Functions.h>

#include <sstream>

namespace retape::detail {

Told describe_result(const ValueSnapshot& then, const at::Tensor& now, const Digest& digest) {
  const auto made = "what it makes (" + then.digest.shape() + ") is not what it made in forward: ";
  if (!then.copy.defined()) {
    return {"values", made + then.digest.difference(digest)};
  }
  UntrackedGuard untracked;
  const auto difference = compare(then.copy, now);
  if (!difference) {
    return {"NaN payload", made + "a NaN has other bits"};
  }
  std::ostringstream text;
  text << made << difference->differing << " of " << difference->elements << " values differ";
  if (difference->ulps != 0) {
    text << " by up to " << difference->ulps << " ulp";
  }
  text << ", first at " << difference->first << ": " << difference->plain << " in forward, "
       << difference->recomputed << " in replay";
  const bool numbers_equal = then.copy.sizes() == now.sizes() && at::equal(then.copy, now);
  return {
      numbers_equal               ? "sign of zero"
          : difference->ulps == 1 ? "one ulp"
                                  : "values",
      text.str()};
}

Told describe_input(const Op& op, size_t index, const at::Tensor& tensor) {
  const auto& input = op.inputs[index];
  const Digest& then = snapshot(op)->inputs[index];
  std::ostringstream text;
  text << "argument \"" << op.info->handle.schema().arguments()[input.arg].name() << "\" ("
       << then.shape() << ")";
  const bool root = !input.value->recipe;
  const char* kind = "freed early";
  if (root && (input.value->superseded || input.value->home_moved())) {
    kind = "stale version";
    text << " is at a later version than the one that forward read";
  } else if (root) {
    kind = "changed unseen";
    text << " was changed since forward, and its version does not tell";
  } else if (
      const auto* made = snapshot(*input.value);
      made && made->digest == Digest(made->view.on(tensor.storage()), /*bits=*/true)) {
    kind = "changed unseen";
    text << " is what its op made; in forward something past the dispatcher changed it before it "
            "was read";
  } else {
    text << " was changed after it had been replayed";
  }
  text << ": " << then.difference(Digest(tensor, /*bits=*/true));
  return {kind, text.str()};
}

}  // namespace retape::detail
