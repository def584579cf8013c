// Runner: runs a case, by one process or by all ranks, with the same end on every rank.
#pragma once

#include "dist/gradcheck/gather_outcomes.h"

#include <exception>
#include <optional>

namespace retape::dist::detail {

// What a step has raised on this rank.
struct Caught {
  std::exception_ptr error;
  std::string text;
  bool collective = false;
};

class Runner {
 public:
  Runner(
      const Group& everyone,
      const GradCheck::Step& reference,
      const GradCheck::Step& distributed,
      const GradCheck::Raised& raised,
      bool replicated)
      : everyone_(everyone),
        reference_(reference),
        distributed_(distributed),
        raised_(raised),
        replicated_(replicated),
        was_cut_(std::make_shared<std::atomic<bool>>(false)) {}

  bool first() const { return everyone_.index() == 0; }
  int rank() const { return everyone_.rank(); }

  // Run once for each case, until `forget`. Empty but on the first rank. An exception there raises
  // on all.
  const Outcome& reference(const Case& what, const std::string& name);
  void forget() { known_.clear(); }

  // An exception on any rank raises on all.
  Ran distributed(const Case& what, const std::string& name);
  // Errors are results: of a step that is broken, and of one as it is.
  Ran broken(const Case& what, const std::vector<Break>& breaks);
  Ran attempt(const Case& what);

  // The first rank's decision.
  bool decide(bool decision) const;
  // On all ranks: whether it is so on one of them.
  bool anywhere(const std::string& what, bool here) const;
  // A distributed run on this rank has asked for its microbatches.
  bool was_cut() const { return *was_cut_; }

 private:
  Ran run(const Case& what, const std::vector<Break>& breaks, const GradCheck::Raised& raised);
  Ran unite(Share mine, const Caught& caught) const;
  [[noreturn]] void fail(
      const std::string& name, const std::vector<RankError>& errors, std::exception_ptr own) const;

  const Group& everyone_;
  const GradCheck::Step& reference_;
  const GradCheck::Step& distributed_;
  const GradCheck::Raised& raised_;
  const bool replicated_;  // see GradCheckOptions
  std::shared_ptr<std::atomic<bool>> was_cut_;
  std::map<std::string, Outcome> known_;
};

}  // namespace retape::dist::detail
