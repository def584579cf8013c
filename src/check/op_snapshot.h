// What forward was like: notes that the replay checker leaves on a tape.
#pragma once

#include "check/digest.h"
#include "tape/flags.h"
#include "tape/op_info.h"
#include "tape/tape_observer.h"
#include "tape/view.h"

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace retape::detail {

// A value, when its op had made it.
struct ValueSnapshot final : Note {
  ValueSnapshot(View view, Digest digest) : view(std::move(view)), digest(std::move(digest)) {}

  View view;  // through which it is looked at, then as now
  Digest digest;
  at::Tensor copy;  // of all of it, where somebody wants to count ulps
};

// An op, when it was about to run.
struct OpSnapshot final : Note {
  std::string name;               // "aten::mul.Tensor"
  std::vector<c10::IValue> args;  // those that are no tensors; None for the others
  std::vector<Digest> inputs;     // tensors, in the order of the arguments
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> scratch;  // what it updates unsaid
  Flags flags;
  at::Generator generator;       // that it draws from; undefined: none
  uint64_t generator_state = 0;  // hash of it
  std::string source;            // "model.py:31 in forward"; empty: unknown
};

const ValueSnapshot* snapshot(const Value& value);  // null: none was taken
const OpSnapshot* snapshot(const Op& op);

// Of an op that is about to run on `stack`.
std::unique_ptr<OpSnapshot> snapshot_of(const OpInfo& op, const torch::jit::Stack& stack);

uint64_t state_hash(at::Generator generator);

std::string source_of_this_op();  // as the language that is running tells

}  // namespace retape::detail
