// replayable: which custom ops may be replayed.
//
// Nothing in a custom op's schema says that it is a function of its arguments: it may count its
// calls, write to a cache, or draw from a generator of its own. So the results of ops outside of
// torch are kept, as plain autograd keeps them. An op that its author knows to be a function of its
// arguments and of torch's generators can be replayed like any other:
//
//   retape::replayable("mylib::fused_norm");       // every overload
//   retape::replayable("mylib::scan.chunked");     // one
//
// If such an op moves the default generator of its device, it is replayed with the state that it
// found. Ops of flash_attn, xformers, torchvision and fbgemm that are known to be pure need no
// call.
#pragma once

#include <retape/api.h>

#include <string>
#include <vector>

namespace retape {

// From now on, on every thread; scopes that are open see it at the op's next call. The op may be
// registered later. UsageError if it is not a name of the form above. Naming an op of torch itself
// changes nothing.
RETAPE_API void replayable(const std::string& op);

// Names given so far, in alphabetical order; without the known ones.
RETAPE_API std::vector<std::string> replayable_ops();

}  // namespace retape
