// Sabotage: what the faults (fault.h) do, where it takes more than leaving something out. Each of
// these does nothing unless one of its faults is on, and is nothing in a build without faults.
#pragma once

#include "tape/fault.h"
#include "tape/tape.h"
#include "tape/view.h"

#include <ATen/core/stack.h>

namespace retape::detail {

#ifdef RETAPE_FAULTS

void sabotage_arguments(const Op& op, torch::jit::Stack& stack);
const OpInfo& sabotaged(const OpInfo& op);
void sabotage_results(c10::ArrayRef<at::Tensor> outputs);
void sabotage_held(const Value& value);  // replayed, and held for a later use
at::Tensor sabotaged(
    const Tape& tape, const Value& value, const View& view, at::Tensor tensor, bool again);
void forget_sabotage();  // and what was put aside for it

#else

inline void sabotage_arguments(const Op&, torch::jit::Stack&) {}
inline const OpInfo& sabotaged(const OpInfo& op) {
  return op;
}
inline void sabotage_results(c10::ArrayRef<at::Tensor>) {}
inline void sabotage_held(const Value&) {}
inline at::Tensor sabotaged(const Tape&, const Value&, const View&, at::Tensor tensor, bool) {
  return tensor;
}

#endif

}  // namespace retape::detail
