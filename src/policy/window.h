// Window: `cheap`. Holds what the last stretch of forward has made, about one layer, and at its
// narrow end decides by an exact min-cut which of it to keep: the fewest bytes from which cheap ops
// can replay all that autograd has saved.
#pragma once

#include "policy/frontier.h"
#include "record/decider.h"

#include <c10/util/flat_hash_map.h>

#include <vector>

namespace retape::detail {

class CutGraph;
class PolicyRules;

class Window final : public Decider {
 public:
  Window(const PolicyRules& rules, Region& region, Shelf& shelf)
      : rules_(rules),
        region_(region),
        shelf_(shelf) {}

  void before_op() override;
  void made(Value& value) override;
  void saved(Value& value) override;
  void saved_wrapper() override { wrapped_ = true; }
  void settle() override;
  void forget_dead() override;
  void close() override;

 private:
  static constexpr size_t kMostOps = 512;  // a forward without narrow places is cut anyway
  static constexpr size_t kQuietOps = 64;  // the same, in a stretch without gradient
  // Where wrappers are saved (DTensor), autograd holds their parts: they stay in use, so that no
  // place is narrow.
  static constexpr size_t kWrappedOps = 16;

  void hold(Value& value);
  void decide();
  void cut_long_chains();
  bool replays(const Op& op) const;  // cheaply, or because the user says so

  const PolicyRules& rules_;
  Region& region_;
  Shelf& shelf_;
  Frontier frontier_;
  std::vector<c10::intrusive_ptr<Value>> held_;  // undecided, in the order they were made
  size_t held_bytes_ = 0;                        // that the window alone may be holding
  size_t saved_ = 0;
  bool wrapped_ = false;  // autograd has saved a wrapper since the last decision
};

}  // namespace retape::detail
