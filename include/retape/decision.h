// What a policy's function is asked, and what it answers.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <functional>
#include <string>

namespace c10 {
class OperatorHandle;  // ATen/core/dispatch/Dispatcher.h
}

namespace retape {

enum class Decision { Keep, Drop };

// A value at the moment an op has made it.
struct ValueInfo {
  const std::string& op;        // "aten::mm": the recorded op, never a composite one
  const std::string& overload;  // "out", or empty
  const std::string& region;    // name of the innermost scope
  c10::IntArrayRef sizes;       // of the tensor the op returned
  c10::ScalarType dtype;
  size_t bytes;   // of its storage
  size_t output;  // which of the op's outputs
  bool cheap;     // replaying costs memory traffic only: pointwise, norm, cast...
};

using PolicyFunction = std::function<Decision(const ValueInfo&)>;

// An op that has just run.
struct OpCall {
  const c10::OperatorHandle& op;
  // All that its schema lists. Read after the op, so in-place writes show.
  c10::ArrayRef<c10::IValue> args;
  c10::ArrayRef<c10::IValue> outputs;  // tensors without graph, unless they are arguments
  const std::string& region;           // name of the innermost scope
};

using OpPolicyFunction = std::function<Decision(const OpCall&)>;

}  // namespace retape
