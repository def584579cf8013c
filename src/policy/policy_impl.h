// What a Policy is made of.
#pragma once

#include "tape/op_info.h"

#include <retape/policy.h>

#include <string>
#include <vector>

namespace retape {

namespace detail {

// A decision that needs nothing but the op: taken when its value is made.
enum class Birth : uint8_t { Keep, Drop, Ask };

}  // namespace detail

struct Policy::Impl {
  enum class Kind { None, Full, Cheap, Function };

  Kind kind = Kind::None;
  bool anchors = true;
  bool lean = true;
  PolicyFunction decide;  // of Kind::Function: one of these two
  OpPolicyFunction decide_op;
  std::vector<std::string> keep;
  std::vector<std::string> drop;

  detail::Birth birth(const detail::OpInfo& op) const;
  bool named_to_drop(const detail::OpInfo& op) const;
};

}  // namespace retape
