#include "policy/frontier.h"

#include <algorithm>
#include <iterator>

namespace retape::detail {

template <typename Test>
void Frontier::forget_if(Values& values, Test&& test) {
  const auto gone = std::remove_if(values.begin(), values.end(), [&](const auto& value) {
    if (!test(*value)) {
      return false;
    }
    bytes_ -= value->nbytes;
    return true;
  });
  values.erase(gone, values.end());
}

void Frontier::add(Value& value) {
  if (newest_.size() == 2 * kNewest) {
    const auto middle = newest_.begin() + kNewest;
    older_.insert(older_.end(), std::make_move_iterator(newest_.begin()), std::make_move_iterator(middle));
    newest_.erase(newest_.begin(), middle);
  }
  bytes_ += value.nbytes;
  newest_.push_back(c10::intrusive_ptr<Value>::reclaim_copy(&value));
}

static bool is_unused(const Value& value) {
  return !value.in_use_elsewhere();
}

void Frontier::forget_unused() {
  forget_if(newest_, is_unused);
  forget_if(older_, is_unused);
}

size_t Frontier::bytes() {
  forget_if(newest_, is_unused);
  for (size_t i = 0; i < kOlderInTurn && !older_.empty(); ++i) {
    next_ = next_ < older_.size() ? next_ : 0;
    auto& value = older_[next_];
    if (value->in_use_elsewhere()) {
      ++next_;
      continue;
    }
    bytes_ -= value->nbytes;
    std::swap(value, older_.back());
    older_.pop_back();
  }
  return bytes_;
}

void Frontier::forget_roots() {
  const auto is_root = [](const Value& value) { return !value.recipe && value.hold == Hold::None; };
  forget_if(newest_, is_root);
  forget_if(older_, is_root);
}

void Frontier::clear() {
  newest_.clear();
  older_.clear();
  next_ = bytes_ = 0;
}

}  // namespace retape::detail
