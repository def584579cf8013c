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

static bool is_unused(const Value& value) {
  return !value.in_use_elsewhere();
}

void Frontier::add(Value& value) {
  if (newest_.size() == 2 * kNewest) {
    make_room();
  }
  bytes_ += value.nbytes;
  newest_.push_back(c10::intrusive_ptr<Value>::reclaim_copy(&value));
}

// As many older ones are looked at as newest ones may come before the next time.
void Frontier::make_room() {
  forget_if(newest_, is_unused);
  if (newest_.size() > kNewest) {
    const auto last = newest_.end() - kNewest;
    older_.insert(
        older_.end(), std::make_move_iterator(newest_.begin()), std::make_move_iterator(last));
    newest_.erase(newest_.begin(), last);
  }
  look_at_older(2 * kNewest);
}

void Frontier::look_at_older(size_t count) {
  for (size_t i = 0; i < count && !older_.empty(); ++i) {
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
}

void Frontier::forget_unused() {
  forget_if(newest_, is_unused);
  forget_if(older_, is_unused);
}

size_t Frontier::bytes() {
  forget_if(newest_, is_unused);
  look_at_older(kOlderInTurn);
  return bytes_;
}

void Frontier::forget_roots() {
  const auto is_root = [](const Value& value) {
    return !value.recipe && (value.hold == Hold::None || value.saved_itself);
  };
  forget_if(newest_, is_root);
  forget_if(older_, is_root);
}

void Frontier::clear() {
  newest_.clear();
  older_.clear();
  next_ = bytes_ = 0;
}

}  // namespace retape::detail
