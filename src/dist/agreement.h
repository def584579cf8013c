// Agreement: the ranks of a group compare what they are about to do, through its store.
//
// For call number s, each rank adds 1 to the counter of its own fingerprint (a hash of the text), then
// to the counter of all. Whoever comes last sees both: all the same, and it opens the gate; else it sets
// the gate to "bad", and everybody writes his text down and reads those of the others. Texts travel only
// then, so an agreed call costs three round trips for any number of ranks.
//
// A rank that does not come is known by its mark: each rank writes the number of the call that it has
// come to under its own key.
#pragma once

#include "dist/roll_call.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace retape::dist::detail {

using Milliseconds = std::chrono::milliseconds;

// What a rank is about to do. `complaint`: why it would rather not.
struct Call {
  std::string text;
  std::string complaint;
};

class Agreement {
 public:
  // `store` is this agreement's own connection: a rank that waits keeps it busy. `goes_on` is called when
  // the roll is called, which takes time of its own.
  Agreement(
      c10::intrusive_ptr<c10d::Store> store,
      std::string group,
      std::vector<int> ranks,
      int index,
      Milliseconds timeout,
      std::function<void()> goes_on);

  // Returns when all ranks have come with the same text and no complaint. CollectiveError.
  void reach(const Call& call);

  // After `reason`, an error in the call that was agreed on: CollectiveError with who is to blame.
  [[noreturn]] void fail(const Call& call, const std::string& reason);

  // The roll, over another connection.
  RollCall roll(c10::intrusive_ptr<c10d::Store> store) const;

  uint64_t sequence() const { return sequence_; }

 private:
  std::string key(const std::string& what) const;
  std::string at(const Call& call) const;
  std::string wait_at_gate(const Call& call);
  std::vector<Answer> call_the_roll();
  [[noreturn]] void blame(const Call& call, const std::vector<Answer>& answers, const std::string& reason);
  [[noreturn]] void give_up(const std::string& text, std::vector<int> ranks);
  [[noreturn]] void explain_absence(const Call& call);
  [[noreturn]] void explain_difference(const Call& call);
  bool has_come(int index);
  void forget(uint64_t sequence);

  c10::intrusive_ptr<c10d::Store> store_;
  std::string group_;
  std::string prefix_;  // of all keys
  std::vector<int> ranks_;
  int index_;
  Milliseconds timeout_;
  std::function<void()> goes_on_;
  uint64_t sequence_ = 0;       // of the call under way; the first is 1
  std::string last_counter_;    // of the fingerprint of the call before
  RollCall roll_;
};

// "rank 2", "ranks 0, 1 and 4".
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace retape::dist::detail
