// Replay: running recipes again, on values, below autograd and autocast, with the settings and the
// generator state of the first time.
#pragma once

#include "tape/tape.h"

namespace retape::detail {

struct Brought {
  c10::Storage storage;
  bool shared;  // somebody else sees it too: forward's own storage
};

// The bytes of `value`: held, alive, or replayed. In a backward pass (>= 0) values replayed on the
// way that are still wanted in it are held until their last use, so that no op runs twice; outside
// of one nothing is held. Takes the tape's lock, but never while an op runs.
Brought bring_back(Tape& tape, Value& value, int pass);

// Storages that replay of `value` would read and that were discarded (output_discard/output.h).
std::vector<c10::Storage> discarded_roots(Tape& tape, Value& value);

// One use of `value` is over in this pass. Under the tape's lock.
void consume(Value& value, int pass);

}  // namespace retape::detail
