// The process' count of replayed ops.
#pragma once

#include <retape/replayed.h>

namespace retape::detail {

void count_replayed(uint64_t ops);

}  // namespace retape::detail
