#include "policy/frontier.h"

#include <algorithm>

namespace retape::detail {

void Frontier::add(Value& value) {
  values_.push_back(c10::intrusive_ptr<Value>::reclaim_copy(&value));
}

size_t Frontier::bytes() {
  size_t total = 0;
  values_.erase(
      std::remove_if(
          values_.begin(), values_.end(),
          [&](const auto& value) {
            if (!value->in_use_elsewhere()) {
              return true;
            }
            total += value->nbytes;
            return false;
          }),
      values_.end());
  return total;
}

void Frontier::forget_roots() {
  values_.erase(
      std::remove_if(
          values_.begin(), values_.end(),
          [](const auto& value) { return !value->recipe && value->hold == Hold::None; }),
      values_.end());
}

}  // namespace retape::detail
