// ReplayChecker: compares what replay does with what forward did, for the tapes that begin while a
// comparison is switched on. It observes each of them (tape/tape_observer.h).
//
// In production (check_every) the first difference raises ReplayMismatch. A retape::Observer looks
// closely: it snapshots ops as well as values, and collects differences in the order in which they
// are found. The first one is the cause.
// Threads: any. Its lock is a leaf. No op of a user runs here, and none of its own is recorded.
#pragma once

#include "check/op_snapshot.h"
#include "tape/tape.h"
#include "tape/value.h"

#include <retape/check.h>

#include <ATen/core/stack.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace retape::detail {

// A call under rerun that an observer sees.
struct SeenCall {
  std::string name;
  std::atomic<uint64_t> reruns{0};
};

class ReplayChecker {
 public:
  // For what begins to be recorded now; null: nobody asked.
  static std::shared_ptr<ReplayChecker> now();

  ReplayChecker(bool closely, bool copies) : closely_(closely), copies_(copies) {}

  bool closely() const { return closely_; }
  std::shared_ptr<SeenCall> called(std::string name);

  // The part of it that sees one tape: the first, the second...
  class OfTape;
  std::shared_ptr<TapeObserver> observer_of_new_tape(std::shared_ptr<ReplayChecker> self);

  // Of the second run of a call, which does its own comparing.
  void found(Finding finding);

  std::vector<Finding> findings() const;
  std::vector<SeenRegion> regions() const;
  uint64_t values_checked() const;
  uint64_t bytes_held() const;  // replayed for graphs that are gone

 private:
  // Tokens hold the tape: while it is there, so is the graph. Eager too holds graphs for ever that
  // own a tensor whose history they are (saved, then written in place).
  struct Replayed {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    c10::weak_intrusive_ptr<Tape> tape;
  };

  struct Where {
    uint64_t tape;
    uint64_t op;
  };

  void opened(std::shared_ptr<Region> region);
  std::unique_ptr<ValueSnapshot> snapshot_of_result(View view, const at::Tensor& made) const;
  void enter(uint64_t tape, const Op& op, const Value& value);
  void before(const ReplayCall& call);
  void after(const Op& op);
  void replayed(Tape& tape, const Op& op, const Value& value, const c10::Storage& storage);
  void unpacked(
      uint64_t tape, const Value& value, const View& saved, const at::Tensor& tensor, bool again);

  void found(const Op& op, std::string kind, const std::string& what);
  void examine_writes(const ReplayCall& call);
  void examine_generator(const Op& op, const OpInfo& called, c10::ArrayRef<c10::IValue> args);
  void mislead(const Op& op);
  void examine_input(const Op& op, size_t index, const at::Tensor& tensor);
  bool is_known_to_be_wrong(const Value& value, const at::Tensor& tensor, const Digest& now);

  const bool closely_;
  const bool copies_;

  mutable std::mutex mutex_;
  std::vector<Finding> findings_;
  std::vector<std::shared_ptr<Region>> regions_;
  std::vector<std::shared_ptr<SeenCall>> calls_;
  std::unordered_map<uint64_t, Where>
      made_;  // by hash: where bytes come from that should not be there
  std::vector<Replayed> replayed_;
  std::unordered_set<uint64_t> wrong_;    // hashes of what was found; and of what came of it
  std::unordered_set<const Op*> misled_;  // ops that run on such bytes
  std::unordered_map<const Op*, std::vector<uint64_t>> scratch_;  // hashes, while the op runs
  uint64_t tapes_ = 0;
  uint64_t values_checked_ = 0;
};

// Of a tape that begins now; null where no comparison is on.
std::shared_ptr<TapeObserver> checker_of_new_tape();

}  // namespace retape::detail
