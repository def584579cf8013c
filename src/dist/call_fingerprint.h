// CallFingerprint: the ranks of a process group compare what each is about to do, and one decision
// per call holds for all of them.
//
// At each call a rank publishes its mark, the number of the call and a hash of what it would do,
// and then counts itself in. The last to arrive compares all marks and decides the gate of the
// call. A rank that gives a call up decides its gate, too. The first decision stands, so that no
// rank begins what another has given up. Texts travel only where marks differ.
//
// Round trips to the store: one to arrive, and for the last rank two more; for the others one for
// each look at the gate.
#pragma once

#include <retape/dist/group.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace retape::dist::detail {

using Milliseconds = std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// What a rank is about to do. `complaint`: why it would rather not.
struct Call {
  std::string text;
  std::string complaint = {};
  // Set by the Group that it is made through.
  std::string group = {};
  Milliseconds timeout{};
};

// What became of a call, for all ranks.
struct Decision {
  enum class Kind : char {
    Agreed = 'a',
    Differ = 'd',
    Absent = 'm',       // `indices` did not come within `waited`
    Interrupted = 'i',  // the caller on a rank was interrupted, and left the call
    Dropped = 'x',      // the same in the call before, which all had come to: it has no result
    Left = 'l',         // the process of a rank ends
    Failed = 'f',       // the call before failed
  };
  Kind kind;
  std::vector<int> indices = {};
  Milliseconds waited{};
};

class CallFingerprint {
 public:
  CallFingerprint(StorePtr store, std::vector<int> ranks, int index);

  // The next call. What was decided, if this rank is the last to arrive.
  std::optional<Decision> arrive(const Call& call);

  // Of the call under way; the first is 1.
  uint64_t sequence() const { return sequence_; }
  std::optional<Decision> look() const;
  Decision decide(const Decision& decision) const;       // what stands
  Decision decide_next(const Decision& decision) const;  // of the call after it
  std::vector<int> absent() const;                       // indices that have not come to it

  // "[group] call 4, sum "a" Float[2]: "
  std::string at(const Call& call) const;
  // Why ranks differ. Waits a second at most for texts that are on their way, and calls `meanwhile`
  // again and again.
  CollectiveError difference(const Call& call, const std::function<void()>& meanwhile) const;

 private:
  Decision decide(uint64_t sequence, const Decision& decision) const;
  bool all_marks_are(const std::string& mark) const;

  StorePtr store_;
  std::vector<int> ranks_;
  int index_;
  uint64_t sequence_ = 0;
};

}  // namespace retape::dist::detail
