// Output: a storage whose bytes can be given up and brought back in place.
//
// From the end of the call that made it until it is discarded, somebody who may still discard it
// owns it. Then its storage does: in place of its data the storage holds the recipe, so the recipe
// lives as long as anybody can still ask for the bytes, and a graph that dies without backward
// takes it along. Views and version counters do not notice.
//
//   call ──▶ Output ──▶ Value ──▶ Op ...      pending: bytes there
//   storage ──▶ Output ──▶ Value ──▶ Op ...   discarded: no bytes, every read brings them back
//
// A write to it, or to what its recipe reads, would make the recipe give something else. A pending
// output then stays where it is; a discarded one is brought back before the write.
//
// While there are any, ops of the threads that made them and of every backward look at their
// arguments first. What reads past the dispatcher (data_ptr, numpy) gets an error that says so.
// Threads: any. The lock is a leaf: nothing is called and nothing dies under it.
#pragma once

#include "tape/tape.h"

#include <ATen/core/stack.h>

#include <memory>
#include <string>

namespace retape::detail {

class Output : public std::enable_shared_from_this<Output> {
 public:
  // The one of `value`'s home, made by op number `first_op` of the tape or later ones. `what` names
  // it in errors: "output 0 (Float [8, 64])".
  static std::shared_ptr<Output> watch(
      c10::intrusive_ptr<Tape> tape,
      c10::intrusive_ptr<Value> value,
      uint64_t first_op,
      std::string what);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // Frees the bytes now and returns how many; 0 where that could not be undone (they were changed
  // since the call) or nothing is left to free.
  size_t discard();
  void refill();  // does nothing unless discarded. Takes tapes' locks: not to be called under one

  c10::intrusive_ptr<c10::StorageImpl> storage() const { return storage_.lock(); }
  const std::string& what() const { return what_; }

 private:
  friend struct Outputs;
  friend void before_op(const OpInfo& info, const torch::jit::Stack& stack);
  Output(
      c10::intrusive_ptr<Tape> tape,
      c10::intrusive_ptr<Value> value,
      uint64_t first_op,
      std::string what);
  void find_roots(uint64_t first_op);
  bool can_be_replayed();
  c10::DataPtr bring_data();
  void refill_from_what_is_there();

  const c10::intrusive_ptr<Tape> tape_;
  c10::intrusive_ptr<Value> value_;
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  const std::string what_;
  std::vector<const c10::StorageImpl*> roots_;  // what the recipe reads; alive as long as value_
  bool written_ = false;    // since the call, it or a root: the recipe gives something else by now
  bool discarded_ = false;  // both under the lock of all outputs
};

// An op is about to run: fills its arguments, and notes what it will write.
void before_op(const OpInfo& info, const torch::jit::Stack& stack);

}  // namespace retape::detail
