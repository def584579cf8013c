// Sentry: looks from time to time, on a thread of its own, whether a rank of the group has called
// the roll, and answers for one that is stuck in a call or busy elsewhere.
#pragma once

#include "dist/liveness_check.h"

#include <cstdint>
#include <optional>

namespace retape::dist::detail {

class Sentry {
 public:
  Sentry(Board board, size_t size, size_t index) : roll_(std::move(board), size), index_(index) {
    roll_.join(index_);
  }

  // `answer`: what this rank does. Returns who is to blame, once the roll was called and somebody
  // has said so.
  std::optional<CollectiveError> look(Answer answer);

 private:
  RollCall roll_;
  size_t index_;
  int64_t answered_ = 0;  // how often it was asked
  bool called_ = false;
};

}  // namespace retape::dist::detail
