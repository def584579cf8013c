// Region: a named stretch of forward, and what was counted in it.
#pragma once

#include <retape/stats.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace retape::detail {

// Written under the tape's lock, read by anyone at any time.
class Counter {
 public:
  void add(uint64_t n) { count_.store(get() + n, std::memory_order_relaxed); }
  void subtract(uint64_t n) { count_.store(get() - n, std::memory_order_relaxed); }
  void raise_to(uint64_t n) { count_.store(std::max(get(), n), std::memory_order_relaxed); }
  uint64_t get() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> count_{0};
};

struct Counters {
  Counter ops_recorded;
  Counter values_saved, values_dropped;
  Counter bytes_saved, bytes_given, bytes_dropped;
  Counter anchors, bytes_anchored;
  Counter window_bytes;
  Counter ops_replayed;
  Counter replay_ns;
};

// By op: what a scope keeps for want of a word from the user. Any thread.
class KeptOps {
 public:
  void add(const std::string& op, size_t bytes);
  std::vector<KeptOp> all() const;  // by name

 private:
  mutable std::mutex mutex_;
  std::map<std::string, KeptOp> by_name_;
};

struct Region {
  explicit Region(std::string name) : name(std::move(name)) {}

  const std::string name;
  bool timed = false;             // counts replay_ns
  bool may_hold_results = false;  // in the place of larger roots
  bool holds_anchors = false;     // what is kept here may be dropped again
  Counters counters;
  KeptOps kept_ops;

  Stats stats() const;
};

}  // namespace retape::detail
