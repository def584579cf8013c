// Eager: while it lives, on this thread, every front end of Retape is a plain call.
//
//   {
//     retape::Eager eager;
//     loss = model->forward(batch);   // its scopes, checkpoints and layers recompute nothing
//   }
//
// For comparing: the same code, with and without. What was recorded before stays replayable.
// Nests. Cost: one branch where a scope would open.
#pragma once

#include <retape/api.h>

namespace retape {

class RETAPE_API Eager {
 public:
  Eager();
  ~Eager();
  Eager(const Eager&) = delete;
  Eager& operator=(const Eager&) = delete;
};

// True on a thread that has one.
RETAPE_API bool is_eager();

}  // namespace retape
