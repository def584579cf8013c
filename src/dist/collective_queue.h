// CollectiveQueue: makes the calls of one process group, one after the other, whichever Group they
// come through: a transport pairs calls by their order alone, and mixes up two that are under way.
//
// It has one thread, which makes the calls, and one connection to the store; both last as long as
// the process group. Who waits for a call looks at the clock, since a store whose host is stopped
// never answers: then the thread is left where it is.
//
//   Idle       beats, until there is a job
//   Gate       publishes what it is about to do, and looks at the gate until that is decided
//   Transport  waits for the works of the job; beats, and looks for a verdict of others
//
// Broken is for good: each later call raises the same error at once.
#pragma once

#include "dist/liveness_monitor.h"

#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace retape::dist::detail {

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

// One call. `send` and `land` run on the queue's thread, after the ranks have agreed and when the
// works have arrived: they touch nothing that the caller can see, so an error leaves the caller's
// tensors as they were, and a tape that records the caller's ops sees none of it. `finish` runs in
// wait, on the caller's thread.
struct Job {
  Call call;
  std::function<Works(c10d::ProcessGroup*)> send = {};  // null: agreement is all
  std::function<void()> land = {};
  std::function<void()> finish = {};
  std::optional<c10::Stream> stream = {};  // current when the call was made
  ProcessGroupPtr process_group = {};
  bool done = false;
  bool withdrawn = false;  // its rank gives it up, if not all have come
  bool dropped = false;    // its caller was interrupted: no one takes its result
  std::exception_ptr error = {};
};

class CollectiveQueue {
 public:
  // The process's one for that process group.
  static std::shared_ptr<CollectiveQueue> of(
      const ProcessGroupPtr& process_group,
      const std::vector<int>& ranks,
      std::optional<int> store_host);

  // This process ends: no queue makes another call. One whose process hosts the store serves it
  // until the others have left as well or no longer answer, for a minute at the longest.
  static void leave();
  // Group::abandon; and of every process group of this process.
  static void abandon(const std::vector<std::shared_ptr<CollectiveQueue>>& queues);
  static void abandon_all();
  static void set_while_waiting(WhileWaiting call);

  void start(std::shared_ptr<Job> job);
  // CollectiveError. An exception of what is called while it waits (an interrupt) ends the wait: at
  // the gate the rank leaves the call; after it the result is lost, and the group is broken.
  void wait(Job& job);
  void withdraw();
  bool is_here() const;  // not in a fork of its process, which has none of its threads
  // A Group of the process group begins or ends.
  void hold();
  void release();

 private:
  using Clock = std::chrono::steady_clock;
  struct Registry;
  static Registry& registry();

  CollectiveQueue(
      const ProcessGroupPtr& process_group,
      const std::vector<int>& ranks,
      std::optional<int> store_host);
  bool serves(const ProcessGroupPtr& process_group) const;
  bool hosts() const { return store_host_ == ranks_[index_]; }
  Milliseconds to_rest() const;

  void interrupted_in_wait(Job& job);
  void publish(const CollectiveError& error);
  std::exception_ptr store_is_gone(const Call& call) const;

  // The thread's.
  void run();
  void connect();
  void leave_next_call(std::unique_lock<std::mutex>& lock);
  void idle(std::unique_lock<std::mutex>& lock);
  void make_next(std::unique_lock<std::mutex>& lock);
  std::exception_ptr make(Job& job);
  void agree(const Job& job);
  std::optional<Decision> give_up(const Job& job, Milliseconds waited);
  void transport(Job& job);
  void wait_for(const Works& works, const Call& call);
  void say_goodbye();
  void beat();
  void beat_if_due();
  void expect(Milliseconds longest);

  [[noreturn]] void raise(const CollectiveError& error);
  [[noreturn]] void explain(const Call& call, const Decision& decision, Milliseconds waited);
  [[noreturn]] void explain_absence(
      const Call& call, const std::vector<int>& indices, Milliseconds waited);
  CollectiveError failure_of(const Call& call, const std::string& reason);

  const std::vector<int> ranks_;
  const int index_;
  const std::optional<int> store_host_;
  const pid_t process_;
  const c10::weak_intrusive_ptr<c10d::ProcessGroup> process_group_;
  StorePtr store_;  // until the thread has a connection of its own

  std::optional<CallFingerprint> calls_;  // the thread's
  Clock::time_point last_beat_;           // the thread's

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<LivenessMonitor> monitor_;
  std::deque<std::shared_ptr<Job>> jobs_;  // the first one is under way
  // Tensors that end with a job may be Python's, and a thread that asks for the GIL while Python
  // ends is ended where it stands. So jobs end on the threads of those who call.
  std::vector<std::shared_ptr<Job>> done_;
  std::exception_ptr broken_;
  std::optional<Decision::Kind> interrupted_;  // this rank leaves its next call, for that reason
  int groups_ = 0;
  bool leaving_ = false;   // with the process
  bool finished_ = false;  // the thread has ended
  bool stuck_ = false;     // the thread is left in a store that does not answer
  bool beats_ = true;      // until the store is gone: c10d writes a warning each time
  Clock::time_point until_ = Clock::time_point::max();  // the thread must have got on
  Clock::time_point awake_;  // when one that waits last looked at the clock
};

}  // namespace retape::dist::detail
