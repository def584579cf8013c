// Decider: takes a policy's decisions while ops stream by. One per open scope; all calls come from
// the recording thread, under the tape's lock.
#pragma once

#include "tape/value.h"

#include <memory>

namespace retape::detail {

// What a decider can do to a value that has a recipe.
class Shelf {
 public:
  virtual ~Shelf();
  virtual void keep(Value& value) = 0;   // hold its bytes; they must still be alive
  virtual void drop(Value& value) = 0;   // forget them again
  virtual void sever(Value& value) = 0;  // it will not be replayed: kept for good, or a root again
};

class Decider {
 public:
  virtual ~Decider();
  virtual void before_op() = 0;          // values that nobody needs any more have died by now
  virtual void made(Value& value) = 0;   // a value with a recipe is on the tape
  virtual void saved(Value& value) = 0;  // ... and, for the first time, autograd has saved it
  virtual void saved_wrapper() {}  // autograd has saved a tensor of which it holds the parts itself
  virtual void settle() = 0;       // decide now; forget values that are not needed
  virtual void forget_dead() = 0;  // values that nothing needs and nobody uses
  virtual void close() = 0;        // forward is over: decide what is left
};

}  // namespace retape::detail
