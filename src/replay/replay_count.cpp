#include "replay/replay_count.h"

#include <atomic>

namespace retape {

namespace {

std::atomic<uint64_t> replayed{0};

}  // namespace

namespace detail {

void count_replayed(uint64_t ops) {
  replayed.fetch_add(ops, std::memory_order_relaxed);
}

}  // namespace detail

uint64_t ops_replayed() {
  return replayed.load(std::memory_order_relaxed);
}

}  // namespace retape
