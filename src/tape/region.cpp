#include "tape/region.h"

namespace retape::detail {

void KeptOps::add(const std::string& op, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& kept = by_name_[op];
  kept.op = op;
  kept.values += 1;
  kept.bytes += bytes;
}

std::vector<KeptOp> KeptOps::all() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<KeptOp> ops;
  for (const auto& [name, kept] : by_name_) {
    ops.push_back(kept);
  }
  return ops;
}

Stats Region::stats() const {
  Stats stats;
  stats.ops_recorded = counters.ops_recorded.get();
  stats.values_saved = counters.values_saved.get();
  stats.values_dropped = counters.values_dropped.get();
  stats.values_kept = stats.values_saved - stats.values_dropped;
  stats.bytes_dropped = counters.bytes_dropped.get();
  stats.bytes_kept = counters.bytes_saved.get() - stats.bytes_dropped;
  stats.bytes_given = counters.bytes_given.get();
  stats.anchors = counters.anchors.get();
  stats.bytes_anchored = counters.bytes_anchored.get();
  stats.window_bytes = counters.window_bytes.get();
  stats.ops_replayed = counters.ops_replayed.get();
  stats.replay_ns = counters.replay_ns.get();
  return stats;
}

}  // namespace retape::detail
