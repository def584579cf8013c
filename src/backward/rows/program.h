// Program: what a function did, as a list of ops on numbered tensors. Views are steps too: unlike
// on the tape, a tensor is followed, not its storage, since what a view is of a slice must be made
// anew.
#pragma once

#include "tape/flags.h"
#include "tape/op_info.h"
#include "tape/value.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/function.h>

#include <string>
#include <vector>

namespace retape::detail {

constexpr uint32_t kNoTensor = ~uint32_t{0};  // a result that is undefined

struct Read {
  uint16_t arg;
  int32_t element;  // of a list argument; -1: the argument itself
  uint32_t tensor;
};

struct Step {
  const OpInfo* op = nullptr;
  uint32_t flags = 0;                     // of the program's
  c10::SmallVector<c10::IValue, 6> args;  // tensors taken out
  c10::SmallVector<ListArg, 1> lists;
  c10::SmallVector<Read, 2> reads;
  c10::SmallVector<uint32_t, 1> made;  // a tensor that it wrote has the number it had
};

using NodePtr = c10::intrusive_ptr<torch::autograd::Node>;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct Known {
  explicit Known(const at::Tensor& tensor)
      : impl(tensor.getIntrusivePtr()),
        sizes(tensor.sizes().begin(), tensor.sizes().end()),
        requires_grad(tensor.requires_grad()) {}

  at::Tensor given;  // undefined: a step made it
  WeakTensor impl;   // pins its address, not its bytes
  c10::SmallVector<int64_t, 5> sizes;
  bool requires_grad;
  NodePtr node;  // of one that was made
};

struct Program {
  std::vector<Known> tensors;
  std::vector<Step> steps;
  std::vector<Flags> flags;
  std::string refused;  // why it cannot be told apart by rows; empty: not known yet
};

// The stack for a call of `step`, but for its tensors.
void push_arguments(const Step& step, torch::jit::Stack& stack);
void put_tensor(torch::jit::Stack& stack, const Read& read, at::Tensor tensor);

}  // namespace retape::detail
