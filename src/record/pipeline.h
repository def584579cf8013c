// The way of an op while a scope or an observer of this thread is open: observers before, the
// kernel by way of the recorder, observers after.
#pragma once

#include "tape/op_info.h"

#include <ATen/core/stack.h>

namespace retape::detail {

// Per thread, counted. While on, every op of this thread comes by here.
void see_ops(bool on);

// The same for one thread and until it is switched off, not counted: while there are refillable
// storages.
void see_ops_of_refillables();

// Looks at the arguments of ops while any storage is refillable (residency/refillable.h): fills
// what is read, notes what is written. Set once; null: nothing does.
using RefillableObserver = void (*)(const OpInfo& info, const torch::jit::Stack& stack);
void set_refillable_observer(RefillableObserver observer);

}  // namespace retape::detail
