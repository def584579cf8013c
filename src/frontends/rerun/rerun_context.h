// Conditions: everything that a second run of a function must find as the first one did, besides
// its arguments: settings, and the state of every generator that it draws from.
#pragma once

#include "frontends/rerun/ambient_state.h"
#include "tape/rng_snapshot.h"

#include <memory>
#include <string>
#include <vector>

namespace retape::detail {

class ReplayChecker;
struct SeenCall;

class Conditions {
 public:
  // Of a call, taken now. Without `generators`, a second run draws new numbers.
  Conditions(const std::string& call, bool generators);

  // Before each op of the first run: takes the state of a generator when it is first drawn from.
  void note(const OpInfo& op, c10::ArrayRef<c10::IValue> args);

  ReplayChecker* checker() const { return checker_.get(); }

  // While it lives, what was taken is in force again.
  class Again {
   public:
    explicit Again(const Conditions& conditions);
    ~Again();
    Again(const Again&) = delete;
    Again& operator=(const Again&) = delete;

   private:
    const Conditions& conditions_;
    SurroundingsGuard surroundings_;
    std::vector<at::Tensor> later_;  // states of the generators, in the order of draws_
  };

 private:
  Surroundings surroundings_;
  std::shared_ptr<ReplayChecker> checker_;  // null: nobody looks on
  std::shared_ptr<SeenCall> call_;          // for it
  bool generators_;
  std::vector<std::unique_ptr<Draw>> draws_;
};

}  // namespace retape::detail
