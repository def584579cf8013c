// OpQuestion: what a selective policy is asked about one op. It takes the arguments before the op
// runs, which consumes them, and asks when the op has ended. Inert, and free, for any other policy.
#pragma once

#include "policy/policy_impl.h"
#include "tape/op_info.h"

#include <ATen/core/stack.h>

#include <string>
#include <vector>

namespace retape::detail {

class OpQuestion {
 public:
  OpQuestion(const Policy::Impl& policy, const OpInfo& info, const torch::jit::Stack& stack);

  explicit operator bool() const { return decide_ != nullptr; }

  // With the op's results on top of the stack. Not under a lock: the function may run anything.
  Decision ask(const std::string& region, const torch::jit::Stack& stack) const;

 private:
  const OpPolicyFunction* decide_;
  const OpInfo& info_;
  std::vector<c10::IValue> args_;
  std::vector<const c10::TensorImpl*> with_grad_;  // of args_
};

}  // namespace retape::detail
