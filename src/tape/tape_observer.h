// TapeObserver: sees what goes on a tape and what replay makes of it.
//
//   forward    region_opened(), before_op(), made() or wrote(), entered()
//   backward   before_replay(), after_replay(), replayed(), held(), unpacked()
//
// An observer may leave a note at an op and at a value, and finds it there in backward. Of several
// observers of a tape only one may leave notes. Sources are asked for an observer when a tape
// begins; nearly all tapes have none, and then recording and replay test for an empty list.
//
// Threads: forward's calls come from the recording thread, the others from any thread of backward.
// Calls marked with a lock are made under the tape's. Failure: replay raises what they throw.
#pragma once

#include "tape/op_info.h"
#include "tape/view.h"

#include <ATen/core/stack.h>
#include <c10/core/Storage.h>
#include <c10/util/ArrayRef.h>

#include <memory>
#include <vector>

namespace retape::detail {

struct Op;
struct Region;
struct Tape;
struct Value;

struct Note {
  virtual ~Note();
};

// An op that is about to run again.
struct ReplayCall {
  Op& op;
  const OpInfo* called;
  torch::jit::Stack& stack;
  c10::ArrayRef<c10::Storage> inputs;  // of op.inputs
};

class TapeObserver {
 public:
  virtual ~TapeObserver();

  virtual void region_opened(const std::shared_ptr<Region>& region) {}
  virtual std::unique_ptr<Note> before_op(const OpInfo& op, const torch::jit::Stack& stack);
  virtual std::unique_ptr<Note> made(const at::Tensor& result);
  // `seen`: the part of the storage that the op wrote. `before`: the note at the version before.
  virtual std::unique_ptr<Note> wrote(
      const c10::Storage& storage, const View& seen, const Note* before);
  virtual void entered(const Op& op, const Value& value) {}  // lock

  virtual void before_replay(ReplayCall& call) {}  // lock. It may change what is called
  virtual void after_replay(const Op& op, c10::ArrayRef<at::Tensor> results) {}
  virtual void replayed(Tape& tape, const Op& op, const Value& value, const c10::Storage& storage) {
  }  // lock
  virtual void held(const Value& value) {}  // lock. Its bytes stay for a later use

  // Autograd asked for `value`, which it saved as `saved`, and gets what this returns. Lock.
  virtual at::Tensor unpacked(
      const Tape& tape, const Value& value, const View& saved, at::Tensor tensor, bool again);
};

using TapeObservers = std::vector<std::shared_ptr<TapeObserver>>;

// Null: it does not want to see the tape that begins now.
using ObserverSource = std::shared_ptr<TapeObserver> (*)();

// Once, before a tape begins. Sources are asked, and their observers called, in this order.
void add_observer_source(ObserverSource source);
TapeObservers observers_of_new_tape();

}  // namespace retape::detail
