// Courier: makes the calls of one process group, one after the other, whichever Group they come
// through.
//
// The transport pairs calls by their order, and knows nothing else of them: two threads that call
// the same process group mix up what they send. So a process has one courier for each, with its one
// agreement.
//
// Two threads, which only touch what a courier owns: one makes the calls, over a connection to the
// store of its own; the other is the sentry's, over a connection that all groups of the process
// share. Both may sit in a store that no longer answers, and are then left behind.
#pragma once

#include "dist/call_fingerprint.h"
#include "dist/liveness_monitor.h"
#include "dist/whereabouts.h"

#include <c10/core/Stream.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace retape::dist::detail {

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// One call. `move` runs on the courier's thread, after the ranks have agreed: it touches nothing
// that the caller can see, so an error leaves the caller's tensors as they were, and a tape that
// records the caller's ops sees none of it. `finish` runs in wait, on the caller's thread.
class Job {
 public:
  Call call;
  std::function<void(c10d::ProcessGroup*)> move;  // null: agreement is all
  std::function<void()> finish;
  std::optional<c10::Stream> stream;  // current when the call was made
  // Where the timeout is not known before the store is asked: from what is on the board of words.
  std::function<Milliseconds(const Board& words)> timeout;
  bool done = false;
  bool withdrawn = false;  // its caller was interrupted in wait
  std::exception_ptr error;
};

// What a courier serves.
struct Transport {
  StorePtr store;
  StorePtr words;  // where its ranks leave word, before they come to it too; often the same
  ProcessGroupPtr process_group;  // null: the first job makes it
  std::vector<int> ranks;
  int index;
  std::optional<int> store_host;
  int life = 0;  // set by the courier: how many process groups of these keys there were before in
                 // this process
};

class Courier {
 public:
  // The process's one for that process group. It ends with the last who holds it.
  static std::shared_ptr<Courier> of(Transport transport);

  // This process ends: no courier makes another call, and who waits for one is told, of process
  // groups whose couriers have ended too. One that hosts the store serves it until the others have
  // left as well or no longer answer, for a minute at the longest.
  static void leave();
  static void set_while_waiting(WhileWaiting call);

  void start(std::shared_ptr<Job> job);
  // This process waits for no call that is under way any longer: it was interrupted. As in wait.
  void withdraw();
  // Nor does it make another: others that come to one raise. Returns when they can know, or when
  // the store does not answer.
  void abandon();
  // Of every process group of this process.
  static void abandon_all();
  // CollectiveError. An exception of what is called while it waits (an interrupt) ends the wait,
  // and withdraws the job: other ranks raise too, unless all have come.
  void wait(Job& job);

  // From a job's move: the process group for the jobs that follow. `make` gets a store of its own
  // keys.
  void make_process_group(const std::function<ProcessGroupPtr(const StorePtr&)>& make);

 private:
  // How long after its time a store may still answer. Finding out who is to blame takes kPatience
  // of it.
  static constexpr Milliseconds kGrace{1700};
  // How long after its time a transport may say that it is over.
  static constexpr Milliseconds kLate{200};
  // How often a sentry looks.
  static constexpr Milliseconds kPulse{200};
  // One who wakes later than that after his time was stopped meanwhile.
  static constexpr Milliseconds kOverslept{1000};
  // How long a store may take to hear that a process was interrupted.
  static constexpr Milliseconds kToAbandon{2000};
  // How long it may take threads to come to rest that have nothing to do.
  static constexpr Milliseconds kRest{500};
  // How long a store is served for those who have not ended yet.
  static constexpr Milliseconds kToServe{60000};

  struct Registry;
  static Registry& registry();
  Board own_board() const;
  Board shared_board() const;

  explicit Courier(Transport transport)
      : transport_(std::move(transport)),
        made_here_(!transport_.process_group),
        process_(::getpid()) {}
  void end();
  std::chrono::milliseconds to_rest() const;

  void call_while_waiting(Job& job);
  std::shared_ptr<Job> start_abandoning();
  void wait_in_any_case(Job& job);

  // The courier's thread.
  void run();
  std::exception_ptr make(Job& job);
  void connect();
  void move(Job& job);
  void expect(Milliseconds longest);
  std::exception_ptr store_is_gone(const Call& call) const;

  // The sentry's (watch.cpp).
  struct Glance;
  void watch();
  bool ask_store(std::unique_lock<std::mutex>& lock, const std::function<void()>& ask);
  Glance glance() const;
  void post(std::optional<Sentry>& sentry);
  void look_around(std::optional<Sentry>& sentry, const Glance& seen);
  void look(Sentry& sentry, Answer answer);
  void look_after(const Call& call, Sentry& sentry);
  void look_at_gate(const Glance& seen);
  void say_goodbye(std::optional<Sentry>& sentry);
  bool hosts() const { return transport_.store_host == transport_.ranks[transport_.index]; }

  // Both: what this process does, for those who miss it.
  void leave_word();
  void tell(const CollectiveError& error);
  std::string word(const Board& board);

  Transport transport_;
  const bool made_here_;             // its process group; others may be served by a courier again
  const pid_t process_;              // a fork of it has no threads
  std::shared_ptr<Courier> before_;  // of the same process group, with calls that nobody waited for
  std::optional<Board> own_;         // the courier's thread's
  std::optional<Board> own_words_;   // likewise
  std::thread thread_;
  std::thread sentry_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable wake_;           // the sentry, which sleeps between two looks
  std::deque<std::shared_ptr<Job>> jobs_;  // the first one is under way
  // Tensors that end with a job may be Python's, and a thread that asks for the GIL while Python
  // ends is ended where it stands. So jobs end on the threads of those who call.
  std::vector<std::shared_ptr<Job>> done_;
  std::unique_ptr<Agreement> agreement_;  // the courier's thread alone calls it
  std::optional<Board> board_;            // for the sentry
  std::optional<Board> words_;            // for both threads
  std::exception_ptr broken_;
  // Of the first job.
  struct UnderWay {
    bool moving = false;  // it was agreed on
    bool left = false;    // the courier's thread is left with it
    // When the sentry looks after it: nobody at the gate looks at the clock, and transports wait
    // longer than they are told. And until when the thread must have got on with it: a store whose
    // host is stopped may never answer.
    std::chrono::steady_clock::time_point due = std::chrono::steady_clock::time_point::max();
    std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max();
  };
  UnderWay under_way_;
  bool ending_ = false;
  bool leaving_ = false;      // with the process
  bool unwatched_ = false;    // the sentry's thread has ended
  bool left_behind_ = false;  // its threads, which end when they can
  int busy_ = 0;              // threads that may sit in a store, or wait for the end of a tensor
};

}  // namespace retape::dist::detail
