// LivenessMonitor: which ranks of a process group are still there, and the verdict on a group that
// failed. It has no thread: the queue's thread beats, and examines others when it misses them.
//
// A heartbeat changes five times a second and carries the last failure of its process, in whatever
// group that was: a rank that raised for another one is not to blame itself. A process that ends
// says so. The verdict is the first error that a rank decides: it stands for all, also for those
// that come too late to find out.
#pragma once

#include "dist/call_fingerprint.h"

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace retape::dist::detail {

// An error as it is kept in a store.
std::string written(const CollectiveError& error);
CollectiveError error_from(const std::string& written);

class LivenessMonitor {
 public:
  // `group` outlives a process group that is made anew with the same keys, `life` does not.
  LivenessMonitor(StorePtr group, StorePtr life, std::vector<int> ranks, int index);

  // `failure`: of this process, as written; empty: none. From any thread.
  void beat(const std::string& failure);

  void leave() const;  // the process ends
  bool has_left(int index) const;

  std::optional<CollectiveError> verdict() const;
  CollectiveError decide(const CollectiveError& error) const;  // what stands

  // Who is to blame among those that are missed, in ranks: what failed elsewhere has its own
  // culprits; then those without a heartbeat; if there are none, those whose process ended.
  struct Blame {
    std::vector<int> ranks;
    std::string why;  // " rank 1 has ended. rank 2 has failed elsewhere: ..."
  };
  // Takes a second and a half at most. Calls `meanwhile` again and again. Throws the verdict, if
  // there is one already or another rank is faster.
  Blame examine(const std::vector<int>& indices, const std::function<void()>& meanwhile) const;

  // Returns when all others have left or are gone, or at `until`.
  void serve(std::chrono::steady_clock::time_point until) const;

 private:
  std::string beat_of(int index) const;

  StorePtr group_, life_;
  std::vector<int> ranks_;
  int index_;
  std::atomic<uint64_t> beats_{0};
};

}  // namespace retape::dist::detail
