// Tape: the recording of one outermost scope, shared by the scope and the tokens it gave out.
// It owns no op and no value: those are owned by who can still ask for them (value.h). What it
// holds is their lock.
#pragma once

#include "tape/value.h"

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace retape::detail {

struct Tape final : c10::intrusive_ptr_target {
  std::mutex mutex;
  uint64_t plans = 0;  // of replay, so far
  TapeObservers observers;

  // A graph has let go of a value since the recorder last looked. Recipes of values that live on
  // may still hold it.
  std::atomic<bool> released{false};

  // What replay has brought back in the pass that did so last. When a pass ends, what other passes
  // may want is given up too: between passes a graph holds what it held after forward.
  using Replayed = std::vector<c10::weak_intrusive_ptr<Value>>;
  std::shared_ptr<Replayed> replayed;
  int replayed_in = Value::kNoPass;
};

struct Graveyard;

// Holds a tape's lock. Memory that becomes free under it is given back after it is released: a
// storage's deleter may run foreign code (DLPack, numpy) that takes locks of its own.
class TapeLock {
 public:
  explicit TapeLock(Tape& tape);
  ~TapeLock();
  TapeLock(const TapeLock&) = delete;
  TapeLock& operator=(const TapeLock&) = delete;

 private:
  Tape& tape_;
  Graveyard& yard_;  // of this thread
};

// Ends the life of a storage or an op: storages after the lock is released, ops one after another
// however long the chain that hangs on them.
void bury(c10::Storage&& storage);
void bury(c10::intrusive_ptr<Op>&& op);

}  // namespace retape::detail
