// Conditions: everything that a second run of a function must find as the first one did, besides
// its arguments: settings, and the state of every generator that it draws from.
#pragma once

#include "record/draw.h"
#include "rerun/surroundings.h"

#include <memory>
#include <vector>

namespace retape::detail {

class Conditions {
 public:
  // Taken now. Without `generators`, a second run draws new numbers.
  explicit Conditions(bool generators);

  // Before each op of the first run: takes the state of a generator when it is first drawn from.
  void note(const OpInfo& op, c10::ArrayRef<c10::IValue> args);

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
  bool generators_;
  std::vector<std::unique_ptr<Draw>> draws_;
};

}  // namespace retape::detail
