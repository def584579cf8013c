// Frontier: the values made so far that somebody other than the tape still uses.
//
// Where few bytes are in use, forward is narrow: everything that follows is computed from those few
// values (and parameters). Such a place is the end of a layer, found without anybody naming layers.
//
// A storage does not announce its end, so values are looked at in turn: the newest ones before
// every op, older ones a few at a time. However many tensors a user holds on to, an op costs the
// same; with a few hundred in use the count is exact, beyond that the end of an old one is noticed
// late.
#pragma once

#include "tape/value.h"

#include <vector>

namespace retape::detail {

class Frontier {
 public:
  void add(Value& value);
  size_t bytes();        // in use now
  void forget_unused();  // looks at all of them
  void clear();

  // Calls `visit(value)` for each value that is in use.
  template <typename Visit>
  void each(Visit&& visit) const {
    for (const auto* values : {&older_, &newest_}) {
      for (const auto& value : *values) {
        if (value->in_use_elsewhere()) {
          visit(*value);
        }
      }
    }
  }

  void forget_roots();  // values without a recipe: what holds them from now on is not seen here

 private:
  using Values = std::vector<c10::intrusive_ptr<Value>>;

  static constexpr size_t kNewest = 128;  // at most twice as many are looked at each time
  static constexpr size_t kOlderInTurn = 32;

  void make_room();
  void look_at_older(size_t count);
  template <typename Test>
  void forget_if(Values& values, Test&& test);

  Values newest_, older_;
  size_t next_ = 0;   // of the older ones, to be looked at
  size_t bytes_ = 0;  // of all of them
};

// A place is narrow if what is in use there is at most this fraction of what has piled up.
constexpr size_t kNarrow = 4;

}  // namespace retape::detail
