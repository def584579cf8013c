#include "dist/collective_queue.h"

#include "dist/rank_text.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <signal.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <numeric>
#include <thread>

namespace retape::dist::detail {

namespace {

constexpr Milliseconds kPulse{200};  // between two heartbeats
// How long after its time the thread may still be busy: to find out who is to blame takes 1.3 s.
constexpr Milliseconds kGrace{1700};
// How long after its time a transport may raise by itself.
constexpr Milliseconds kLate{200};
// All have come to a call, and none decides: the last one has half a second.
constexpr Milliseconds kToDecide{500};
// How long threads may take that have nothing to do.
constexpr Milliseconds kRest{500};
constexpr Milliseconds kToAbandon{2000};
constexpr Milliseconds kToServe{60000};

Milliseconds since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now() - begin);
}

// Between two looks at a gate: what was waited so far is an eighth longer then.
std::chrono::microseconds pause_after(std::chrono::steady_clock::duration waited, size_t ranks) {
  using std::chrono::microseconds;
  const microseconds most(10000 + 100 * ranks);  // 1,000 ranks ask one store
  return std::clamp(std::chrono::duration_cast<microseconds>(waited) / 8, microseconds(50), most);
}

// A write to the socket of a rank that has ended gives SIGPIPE, which ends the process by default.
void block_sigpipe() {
  sigset_t pipe;
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
}

// Counts works that are under way.
struct Landing {
  std::mutex mutex;
  std::condition_variable changed;
  size_t under_way;
};

}  // namespace

// Never destroyed: a thread that sits in a store for good outlives what is static.
struct CollectiveQueue::Registry {
  std::atomic<uint64_t> started{0};  // calls of this process, in all its groups
  std::atomic<WhileWaiting> while_waiting{nullptr};
  std::mutex mutex;
  std::map<c10d::ProcessGroup*, std::shared_ptr<CollectiveQueue>> queues;

  std::mutex failure_mutex;
  std::string failure;        // the last one, as written
  uint64_t failed_after = 0;  // calls that had been started: the process may have gone on since

  std::string current_failure() {
    const std::lock_guard guard(failure_mutex);
    return failed_after == started ? failure : "";
  }

  std::vector<std::shared_ptr<CollectiveQueue>> all() {
    const std::lock_guard guard(mutex);
    std::vector<std::shared_ptr<CollectiveQueue>> all;
    for (const auto& [process_group, queue] : queues) {
      if (queue->is_here()) {
        all.push_back(queue);
      }
    }
    return all;
  }

  void forget(const CollectiveQueue* queue) {
    const std::lock_guard guard(mutex);
    std::erase_if(queues, [&](const auto& each) { return each.second.get() == queue; });
  }
};

CollectiveQueue::Registry& CollectiveQueue::registry() {
  static auto& registry = *new Registry();
  return registry;
}

CollectiveQueue::CollectiveQueue(
    const ProcessGroupPtr& process_group,
    const std::vector<int>& ranks,
    std::optional<int> store_host)
    : ranks_(ranks),
      index_(process_group->getRank()),
      store_host_(store_host),
      process_(::getpid()),
      process_group_(process_group),
      store_(process_group->getStore()) {}

bool CollectiveQueue::is_here() const {
  return process_ == ::getpid();
}

bool CollectiveQueue::serves(const ProcessGroupPtr& process_group) const {
  return is_here() && process_group_.lock() == process_group;
}

std::shared_ptr<CollectiveQueue> CollectiveQueue::of(
    const ProcessGroupPtr& process_group,
    const std::vector<int>& ranks,
    std::optional<int> store_host) {
  auto& known = registry();
  const std::lock_guard guard(known.mutex);
  auto& queue = known.queues[process_group.get()];
  if (!queue || !queue->serves(process_group)) {
    static const int at_exit = std::atexit(&CollectiveQueue::leave);
    static_cast<void>(at_exit);
    if (queue && !queue->is_here()) {
      static_cast<void>(new auto(queue));  // its lock may be a thread's that is not in this fork
    }
    queue.reset(new CollectiveQueue(process_group, ranks, store_host));
    std::thread([queue] { queue->run(); }).detach();
  }
  return queue;
}

// ---- of those who call

void CollectiveQueue::set_while_waiting(WhileWaiting call) {
  registry().while_waiting = call;
}

void CollectiveQueue::hold() {
  const std::lock_guard guard(mutex_);
  ++groups_;
}

void CollectiveQueue::release() {
  std::vector<std::shared_ptr<Job>> done;
  const std::lock_guard guard(mutex_);
  --groups_;
  done = std::exchange(done_, {});
  changed_.notify_all();
}

void CollectiveQueue::start(std::shared_ptr<Job> job) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError("[" + job->call.group + "] " + job->call.text + ": this process is " + why);
  };
  if (!is_here()) {
    refuse(
        "a fork of the one that made the group, and has none of its threads. Fix: make groups "
        "after the fork.");
  }
  ++registry().started;
  std::vector<std::shared_ptr<Job>> done;
  const std::lock_guard guard(mutex_);
  if (leaving_) {
    refuse("ending, and its groups have ended before it.");
  }
  done = std::exchange(done_, {});
  if (jobs_.empty()) {
    until_ = Clock::now() + job->call.timeout + kGrace;  // the thread may be in the store
  }
  jobs_.push_back(std::move(job));
  changed_.notify_all();
}

void CollectiveQueue::wait(Job& job) {
  std::vector<std::shared_ptr<Job>> done;
  std::unique_lock lock(mutex_);
  while (!job.done) {
    const auto before = Clock::now();
    changed_.wait_until(
        lock, std::min(until_, before + kPulse), [&] { return job.done || stuck_; });
    // A process that was stopped itself has more time. One of those that wait counts it.
    const auto overslept = since(std::max(before, awake_)) - kPulse;
    if (until_ < Clock::time_point::max() && overslept > kPulse) {
      until_ += overslept;
    }
    awake_ = Clock::now();
    if (!job.done && !stuck_ && awake_ >= until_) {
      broken_ = broken_ ? broken_ : store_is_gone(job.call);
      stuck_ = true;
    }
    if (!job.done && stuck_) {
      std::rethrow_exception(broken_);
    }
    const auto while_waiting = registry().while_waiting.load();
    if (!job.done && while_waiting) {
      lock.unlock();
      try {
        while_waiting();
      } catch (...) {
        interrupted_in_wait(job);
        throw;
      }
      lock.lock();
    }
  }
  done = std::exchange(done_, {});
  if (job.error) {
    std::rethrow_exception(job.error);
  }
}

void CollectiveQueue::interrupted_in_wait(Job& job) {
  const std::lock_guard guard(mutex_);
  job.withdrawn = job.dropped = true;
  if (job.done && !job.error) {  // meanwhile
    interrupted_ = Decision::Kind::Dropped;
  }
  changed_.notify_all();
}

void CollectiveQueue::withdraw() {
  const std::lock_guard guard(mutex_);
  for (const auto& job : jobs_) {
    job->withdrawn = true;
  }
  changed_.notify_all();
}

void CollectiveQueue::abandon(const std::vector<std::shared_ptr<CollectiveQueue>>& queues) {
  for (const auto& queue : queues) {
    queue->withdraw();
    const std::lock_guard guard(queue->mutex_);
    queue->interrupted_ = queue->interrupted_.value_or(Decision::Kind::Interrupted);
    queue->changed_.notify_all();
  }
  for (const auto& queue : queues) {
    std::unique_lock lock(queue->mutex_);
    queue->changed_.wait_for(lock, kToAbandon, [&] {
      return !queue->interrupted_ || queue->broken_ || queue->finished_;
    });
  }
}

void CollectiveQueue::abandon_all() {
  abandon(registry().all());
}

Milliseconds CollectiveQueue::to_rest() const {
  return hosts() && !broken_ ? kToServe + kGrace : kRest;
}

void CollectiveQueue::leave() {
  const auto all = registry().all();
  for (const auto& queue : all) {
    const std::lock_guard guard(queue->mutex_);
    queue->leaving_ = true;
    queue->changed_.notify_all();
  }
  for (const auto& queue : all) {
    std::vector<std::shared_ptr<Job>> done;
    std::unique_lock lock(queue->mutex_);
    queue->changed_.wait_for(
        lock, queue->to_rest(), [&] { return queue->finished_ || queue->stuck_; });
    done = std::exchange(queue->done_, {});
  }
}

std::exception_ptr CollectiveQueue::store_is_gone(const Call& call) const {
  std::vector<int> host;
  std::string who = "Its launcher hosts it";
  if (store_host_) {
    host.push_back(*store_host_);
    who = ranks_text(host) + " hosts it";
  }
  return std::make_exception_ptr(CollectiveError(
      "[" + call.group + "] " + call.text + ": the store does not answer. " + who +
          ", and has ended or is stopped. Nothing that was given has changed. Fix: look at its "
          "output.",
      host));
}

// In the heartbeats of all groups of this process, before whoever made the call knows of it and may
// end the process.
void CollectiveQueue::publish(const CollectiveError& error) {
  auto& known = registry();
  {
    const std::lock_guard guard(known.failure_mutex);
    known.failure = written(error);
    known.failed_after = known.started;
  }
  for (const auto& queue : known.all()) {
    queue->beat();
  }
}

// ---- the thread

void CollectiveQueue::run() {
  ::pthread_setname_np(::pthread_self(), "retape-queue");
  block_sigpipe();
  connect();
  std::unique_lock lock(mutex_);
  while (!leaving_ && (!jobs_.empty() || !process_group_.expired())) {
    if (interrupted_) {
      leave_next_call(lock);
    }
    jobs_.empty() ? idle(lock) : make_next(lock);
  }
  if (leaving_ && !broken_ && calls_) {
    lock.unlock();
    say_goodbye();
    lock.lock();
  }
  // What is left ends with those who wait for it. If there are none any more, Python may be ending,
  // and tensors of its do not end on this thread.
  for (const auto& job : jobs_) {
    job->error = std::make_exception_ptr(
        UsageError("[" + job->call.group + "] " + job->call.text + ": this process is ending."));
    job->done = true;
    done_.push_back(job);
  }
  jobs_.clear();
  if (process_group_.expired() && !done_.empty()) {
    static_cast<void>(new auto(std::exchange(done_, {})));
  }
  finished_ = true;
  changed_.notify_all();
  lock.unlock();
  registry().forget(this);
}

// A store that is gone is the error of the first call.
void CollectiveQueue::connect() {
  try {
    const auto own = c10::make_intrusive<c10d::PrefixStore>("retape", store_->clone());
    // A process group that is made anew in a store that survived has the keys of the one before.
    // Ranks make both.
    const auto life = own->add("lives/" + std::to_string(index_), 1);
    const auto keys = c10::make_intrusive<c10d::PrefixStore>(std::to_string(life), own);
    calls_.emplace(keys, ranks_, index_);
    const auto monitor = std::make_shared<LivenessMonitor>(own, keys, ranks_, index_);
    const std::lock_guard guard(mutex_);
    monitor_ = monitor;
    store_.reset();
  } catch (const std::exception&) {
    calls_.reset();
  }
}

// The gate says it, to this rank as to others.
void CollectiveQueue::leave_next_call(std::unique_lock<std::mutex>& lock) {
  const Decision decision{*interrupted_, {index_}};
  const bool works = !broken_ && calls_;
  lock.unlock();
  try {
    if (works) {
      calls_->decide_next(decision);
    }
  } catch (const std::exception&) {
    // The store is gone, as the next call says.
  }
  lock.lock();
  interrupted_.reset();
  changed_.notify_all();
}

void CollectiveQueue::idle(std::unique_lock<std::mutex>& lock) {
  changed_.wait_for(lock, kPulse, [&] { return leaving_ || !jobs_.empty() || interrupted_; });
  if (jobs_.empty() && groups_ > 0 && !broken_ && !leaving_) {
    lock.unlock();
    beat_if_due();
    lock.lock();
  }
}

void CollectiveQueue::make_next(std::unique_lock<std::mutex>& lock) {
  const auto job = jobs_.front();
  auto error = broken_;
  lock.unlock();
  error = error ? error : make(*job);
  job->process_group.reset();  // which may end with it
  lock.lock();
  until_ = Clock::time_point::max();
  broken_ = broken_ ? broken_ : error;
  if (error) {
    interrupted_.reset();  // the group is broken
  } else if (job->dropped) {
    interrupted_ = Decision::Kind::Dropped;
  }
  job->error = error;
  job->done = true;
  jobs_.pop_front();
  done_.push_back(job);
  changed_.notify_all();
}

std::exception_ptr CollectiveQueue::make(Job& job) {
  expect(job.call.timeout);
  try {
    if (!calls_) {
      connect();
    }
    if (!calls_) {
      return store_is_gone(job.call);
    }
    agree(job);
    if (job.send) {
      transport(job);
    }
  } catch (const CollectiveError& error) {
    publish(error);
    return std::current_exception();
  } catch (const std::exception&) {  // what the store raises
    return store_is_gone(job.call);
  }
  return nullptr;
}

void CollectiveQueue::agree(const Job& job) {
  const auto begin = Clock::now();
  auto decision = calls_->arrive(job.call);
  while (!decision) {
    const auto waited = Clock::now() - begin;
    decision = calls_->look();
    if (!decision) {
      decision = give_up(job, std::chrono::duration_cast<Milliseconds>(waited));
    }
    if (!decision) {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, pause_after(waited, ranks_.size()), [&] {
        return leaving_ || job.withdrawn || interrupted_;
      });
    }
    beat_if_due();
  }
  if (decision->kind != Decision::Kind::Agreed) {
    explain(job.call, *decision, since(begin));
  }
}

// None: goes on waiting.
std::optional<Decision> CollectiveQueue::give_up(const Job& job, Milliseconds waited) {
  using enum Decision::Kind;
  std::unique_lock lock(mutex_);
  const bool leaves = leaving_, withdrawn = job.withdrawn;
  const auto interrupted = interrupted_;
  lock.unlock();
  if (interrupted || withdrawn) {
    return calls_->decide({interrupted.value_or(Interrupted), {index_}});
  }
  if (leaves) {
    monitor_->leave();
    return calls_->decide({Left, {index_}});
  }
  if (waited < job.call.timeout) {
    return std::nullopt;
  }
  auto absent = calls_->absent();
  if (absent.empty() && waited < job.call.timeout + kToDecide) {
    return std::nullopt;
  }
  return calls_->decide({Absent, std::move(absent), job.call.timeout});
}

void CollectiveQueue::transport(Job& job) {
  expect(job.call.timeout);
  const auto stream = job.stream ? c10::OptionalStreamGuard(*job.stream)
                                 : c10::OptionalStreamGuard();
  const at::NoGradGuard no_grad;
  std::string reason;
  try {
    const auto works = job.send(job.process_group.get());
    wait_for(works, job.call);
    for (const auto& work : works) {
      work->wait();
    }
    if (job.land) {
      job.land();
    }
    return;
  } catch (const CollectiveError&) {
    throw;
  } catch (const std::exception& error) {
    reason = error.what();
  }
  calls_->decide_next({Decision::Kind::Failed});                     // wakes those who have gone on
  raise(failure_of(job.call, reason.substr(0, reason.find('\n'))));  // what follows is a stack
}

void CollectiveQueue::wait_for(const Works& works, const Call& call) {
  const auto landing = std::make_shared<Landing>();
  landing->under_way = works.size();
  for (const auto& work : works) {
    work->getFuture()->addCallback([landing](c10::ivalue::Future&) {
      const std::lock_guard guard(landing->mutex);
      --landing->under_way;
      landing->changed.notify_all();
    });
  }
  auto due = Clock::now() + call.timeout + kLate;
  std::unique_lock lock(landing->mutex);
  while (!landing->changed.wait_for(lock, kPulse, [&] { return landing->under_way == 0; })) {
    lock.unlock();
    beat_if_due();
    if (const auto verdict = monitor_->verdict()) {
      throw *verdict;
    }
    if (Clock::now() >= due) {  // because a rank is gone, or because there is much to move
      const auto error = failure_of(call, "it did not end in time");
      if (!error.ranks().empty()) {
        raise(error);
      }
      due = Clock::now() + call.timeout;
      expect(call.timeout);
    }
    lock.lock();
  }
}

void CollectiveQueue::say_goodbye() {
  try {
    monitor_->leave();
    calls_->decide_next({Decision::Kind::Left, {index_}});
    if (hosts()) {
      monitor_->serve(Clock::now() + kToServe);
    }
  } catch (const std::exception&) {
    return;  // the store is gone, and with it those who could hear
  }
}

// Also from threads of other groups.
void CollectiveQueue::beat() {
  std::unique_lock lock(mutex_);
  const auto monitor = stuck_ || !beats_ ? nullptr : monitor_;
  lock.unlock();
  try {
    if (monitor) {
      monitor->beat(registry().current_failure());
    }
  } catch (const std::exception&) {
    lock.lock();
    beats_ = false;  // the store is gone, as the next call of that group says
  }
}

void CollectiveQueue::beat_if_due() {
  if (Clock::now() >= last_beat_ + kPulse) {
    beat();
    last_beat_ = Clock::now();
  }
}

void CollectiveQueue::expect(Milliseconds longest) {
  const std::lock_guard guard(mutex_);
  until_ = Clock::now() + longest + kGrace;
}

// ---- what went wrong

void CollectiveQueue::raise(const CollectiveError& error) {
  throw monitor_->decide(error);
}

void CollectiveQueue::explain(const Call& call, const Decision& decision, Milliseconds waited) {
  using enum Decision::Kind;
  expect(Milliseconds(0));
  if (const auto verdict = monitor_->verdict()) {
    throw *verdict;
  }
  switch (decision.kind) {
    case Differ:
      raise(calls_->difference(call, [&] { beat_if_due(); }));
    case Interrupted:
    case Dropped: {
      const std::vector<int> rank{ranks_.at(decision.indices.at(0))};
      raise(CollectiveError(
          calls_->at(call) + ranks_text(rank) + " was interrupted, and left the call" +
              (decision.kind == Dropped ? " before, which others have made" : "") +
              ". Nothing was sent. Fix: look at the output of " + ranks_text(rank) + ".",
          rank));
    }
    case Failed:
      raise(failure_of(call, "the call before failed"));
    default:
      explain_absence(call, decision.indices, decision.kind == Absent ? decision.waited : waited);
  }
}

void CollectiveQueue::explain_absence(
    const Call& call, const std::vector<int>& indices, Milliseconds waited) {
  if (indices.empty()) {
    raise(failure_of(call, "all came, and none decided"));
  }
  auto blame = monitor_->examine(indices, [&] { beat_if_due(); });
  std::vector<int> late;
  for (const int index : indices) {
    late.push_back(ranks_.at(index));
  }
  if (blame.ranks.empty()) {
    blame.ranks = late;
  }
  raise(CollectiveError(
      calls_->at(call) + ranks_text(late) + " did not come within " +
          std::to_string(waited.count()) + " ms. Nothing was sent." +
          (blame.why.empty() ? " It has ended, is stopped, or skipped the call." : blame.why) +
          " Fix: look at the output of " + ranks_text(blame.ranks) +
          "; a longer timeout if it is only slow.",
      blame.ranks));
}

// Names no ranks where all are there.
CollectiveError CollectiveQueue::failure_of(const Call& call, const std::string& reason) {
  expect(Milliseconds(0));
  std::vector<int> others(ranks_.size());
  std::iota(others.begin(), others.end(), 0);
  std::erase(others, index_);
  const auto gone = monitor_->examine(others, [&] { beat_if_due(); }).ranks;
  return CollectiveError(
      "[" + call.group + "] " + call.text + ": " +
          (gone.empty() ? "failed, and all ranks are there"
                        : ranks_text(gone) + " ended or stopped") +
          ": " + reason + ". Nothing that was given has changed. Fix: look at the output of " +
          (gone.empty() ? "all ranks" : ranks_text(gone)) + ".",
      gone);
}

}  // namespace retape::dist::detail
