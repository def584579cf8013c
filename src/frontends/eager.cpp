#include <retape/eager.h>

#include "frontends/eager.h"

#include <utility>

namespace retape {

namespace {

thread_local int eager_depth = 0;

}  // namespace

Eager::Eager() {
  ++eager_depth;
}

Eager::~Eager() {
  --eager_depth;
}

bool is_eager() {
  return eager_depth > 0;
}

namespace detail {

NotEager::NotEager() : depth_(std::exchange(eager_depth, 0)) {}

NotEager::~NotEager() {
  eager_depth = depth_;
}

}  // namespace detail

}  // namespace retape
