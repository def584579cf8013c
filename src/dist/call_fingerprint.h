// Agreement: the ranks of a process group compare what they are about to do, on its board.
//
// Each rank has a mark: the number of the call that it has come to, and the fingerprint (a hash of
// group and text) of what it would do there. After publishing its mark, a rank increments a
// counter. The last to come compares all marks, and decides the gate of the call: "agreed" or
// "bad". The sentry of a rank that has waited in vain decides it too: "gave up", with the ranks
// that have not come by their marks or have ended; and "withdrawn" where its own caller was
// interrupted. The first decision stands, for all ranks, so that no rank begins what another has
// given up. After "bad" every rank writes its text down and reads those of the others: texts travel
// only then.
//
// Who waits at the gate waits for the decision and not for the clock: a store whose time is over
// tells so in warnings, for which it asks a name server who it is, and that may take seconds.
//
// Every question to the store is a message there and back while all ranks wait: a call has one to
// come, two at the gate, and for the last one three. Whoever begins anew with the same process
// group goes on from his mark.
#pragma once

#include "dist/fingerprint_store.h"
#include "dist/liveness_check.h"
#include "dist/whereabouts.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace retape::dist::detail {

using Milliseconds = std::chrono::milliseconds;

// What a rank is about to do. `complaint`: why it would rather not.
struct Call {
  std::string text;
  std::string complaint = {};
  // Set by the Group that it is made through.
  std::string group = {};
  Milliseconds timeout{};
};

class Agreement {
 public:
  // `board` has a connection of its own, and so have `words`, where ranks leave theirs: the same.
  // `goes_on` is called when time begins that is not the call's: to find out who is to blame.
  Agreement(
      Board board, Board words, std::vector<int> ranks, int index, std::function<void()> goes_on);

  // Returns when all ranks have come with the same text and no complaint. CollectiveError.
  void reach(const Call& call);

  // From another thread, over its own connection `board`: decides the gate of the call under way,
  // which wakes who waits there. When its time has been over for that long...
  void give_up(const Board& board, const Call& call, Milliseconds overdue) const;
  // ...or where the process of one has ended, before or after it came: the call can no longer
  // succeed...
  void give_up_on_those_who_left(const Board& board, Milliseconds waited) const;
  // ...or where this rank's caller was interrupted.
  void withdraw(const Board& board) const;

  // After `reason`, an error in the call that was agreed on: CollectiveError with who is to blame.
  [[noreturn]] void fail(const Call& call, const std::string& reason);

  // Of the call under way; the first is 1. From any thread.
  uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }

 private:
  std::string key_at(const std::string& what) const;  // of this call
  std::string at(const Call& call) const;
  void resume();
  std::string gate_for(const Call& call);
  bool all_would(const std::string& mark) const;
  std::vector<int> missing_at(const Board& board, uint64_t gate) const;
  std::vector<Answer> call_the_roll();
  [[noreturn]] void blame(
      const Call& call, const std::vector<Answer>& answers, const std::string& reason);
  Blame blame_for(int index, Answer answer, bool one_has_ended, Trail& trail) const;
  [[noreturn]] void raise(const std::string& text, std::vector<int> ranks);
  [[noreturn]] void explain_absence(const Call& call, const std::string& gate);
  [[noreturn]] void explain_withdrawal(const Call& call, const std::string& gate);
  [[noreturn]] void explain_difference(const Call& call);
  std::map<std::string, std::vector<int>> texts_of_all(const Call& call);
  bool has_come(int index) const;  // even if too late

  Board board_;
  std::vector<int> ranks_;
  int index_;
  Board words_;
  std::function<void()> goes_on_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<uint64_t> at_gate_{0};  // the sequence, while it waits there
  bool resumed_ = false;
  RollCall roll_;
};

// What an agreed call has failed of, by who has answered the roll.
CollectiveError failure_of(
    const Call& call,
    const std::vector<int>& ranks,
    const std::vector<Answer>& answers,
    const std::string& reason);

}  // namespace retape::dist::detail
