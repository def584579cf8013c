// What is told of a difference between forward and replay: its kind, and how large it is.
#pragma once

#include "check/op_snapshot.h"
#include "tape/value.h"

#include <string>

namespace retape::detail {

struct Told {
  std::string kind;  // of a Finding (retape/check.h)
  std::string what;
};

// An op has made `now`, and `then` in forward. `digest`: of `now`.
Told describe_result(const ValueSnapshot& then, const at::Tensor& now, const Digest& digest);

// An op is about to read `tensor` as its input `index`, which is not what it read in forward.
Told describe_input(const Op& op, size_t index, const at::Tensor& tensor);

}  // namespace retape::detail
