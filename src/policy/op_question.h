// What a selective policy is asked about one op.
#pragma once

#include "record/rules.h"

#include <vector>

namespace retape::detail {

class SelectiveQuestion final : public OpQuestion {
 public:
  // `decide` must outlive it.
  SelectiveQuestion(
      const OpPolicyFunction& decide, const OpInfo& info, const torch::jit::Stack& stack);

  Decision ask(const std::string& region, const torch::jit::Stack& stack) const override;

 private:
  const OpPolicyFunction& decide_;
  const OpInfo& info_;
  std::vector<c10::IValue> args_;
  std::vector<const c10::TensorImpl*> with_grad_;  // of args_
};

}  // namespace retape::detail
