// What a thread is doing, for the memory timeline.
#pragma once

#include <retape/memory.h>

#include <string>

namespace retape::detail {

Phase current_phase();  // peers' recomputation is Replay too
bool is_replaying();    // Retape is

// Name of the region that is recorded or replayed; empty elsewhere.
std::string current_region();

}  // namespace retape::detail
