// Frontier: the values made so far that somebody other than the tape still uses.
//
// Where few bytes are in use, forward is narrow: everything that follows is computed from those few
// values (and parameters). Such a place is the end of a layer, found without anybody naming layers.
#pragma once

#include "tape/value.h"

#include <vector>

namespace retape::detail {

class Frontier {
 public:
  void add(Value& value);
  size_t bytes();  // in use now; forgets the others
  const std::vector<c10::intrusive_ptr<Value>>& values() const { return values_; }
  void forget_roots();  // values without a recipe: what holds them from now on is not seen here
  void clear() { values_.clear(); }

 private:
  std::vector<c10::intrusive_ptr<Value>> values_;
};

// A place is narrow if what is in use there is at most this fraction of what has piled up.
constexpr size_t kNarrow = 4;

}  // namespace retape::detail
