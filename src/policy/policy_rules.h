// What a Policy is made of: the rules that recording asks.
#pragma once

#include "record/rules.h"

#include <retape/decision.h>

#include <string>
#include <vector>

namespace retape::detail {

class PolicyRules final : public Rules {
 public:
  enum class Kind { None, Full, Cheap, Function };

  explicit PolicyRules(Kind kind);

  Birth birth(const OpInfo& op) const override;
  Decision decide(const ValueInfo& value) const override { return function(value); }
  std::unique_ptr<OpQuestion> question(
      const OpInfo& op, const torch::jit::Stack& stack) const override;
  std::unique_ptr<Decider> decider(Region& region, Shelf& shelf) const override;

  bool is_named_to_drop(const OpInfo& op) const;
  void set_anchors(bool on);
  void drop(const std::vector<std::string>& names);
  void keep(const std::vector<std::string>& names);
  std::string describe() const;

  PolicyFunction function;  // of Kind::Function: one of these two
  OpPolicyFunction op_function;

 private:
  const Kind kind_;
  bool anchors_ = true;
  std::vector<std::string> keep_;
  std::vector<std::string> drop_;
};

}  // namespace retape::detail
