// What a thread is doing, for the memory timeline.
#pragma once

#include <retape/memory.h>

#include <string>

namespace retape::detail {

Phase current_phase();  // peers' recomputation is Replay too

// This thread has opened a meter or a scope, or has run a backward: what it allocates where nothing
// is going on is forward's.
bool trains_here();
void note_training_thread();

bool is_replaying();  // Retape is

// Name of the region that is recorded or replayed; empty elsewhere.
std::string current_region();

}  // namespace retape::detail
