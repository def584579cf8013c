// How many ops Retape has replayed: in this process, on all threads, by every front end. For one
// scope alone there is Recompute::stats.
//
//   const auto before = retape::ops_replayed();
//   loss.backward();
//   std::cout << retape::ops_replayed() - before << " ops replayed\n";
#pragma once

#include <retape/api.h>

#include <cstdint>

namespace retape {

RETAPE_API uint64_t ops_replayed();

}  // namespace retape
