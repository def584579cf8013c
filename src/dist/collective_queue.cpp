#include "dist/collective_queue.h"

#include "dist/queue_registry.h"
#include "dist/sigpipe.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>

namespace retape::dist::detail {

using Clock = std::chrono::steady_clock;

Courier::Registry& Courier::registry() {
  static auto& registry =
      *new Registry();  // threads that were left behind may outlive what is static
  return registry;
}

std::shared_ptr<Courier> Courier::of(Transport transport) {
  auto& known = registry();
  const std::lock_guard guard(known.mutex);
  auto* const process_group = transport.process_group.get();
  if (const auto it = known.held.find(process_group); process_group && it != known.held.end()) {
    if (auto courier = it->second.lock()) {
      return courier;
    }
  }
  transport.life = known.life_of(transport);
  const std::shared_ptr<Courier> self(new Courier(std::move(transport)));
  auto& couriers = known.couriers;
  std::erase_if(couriers, [](const auto& each) { return each.expired(); });
  std::erase_if(known.held, [](const auto& each) { return each.second.expired(); });
  for (const auto& each : couriers) {
    const auto other = each.lock();
    if (process_group && other && other->transport_.process_group.get() == process_group) {
      self->before_ = other;
    }
  }
  couriers.push_back(self);
  const SigpipeBlocked in_its_threads;
  self->thread_ = std::thread([self] { self->run(); });
  self->sentry_ = std::thread([self] { self->watch(); });
  // Whoever still has a weak pointer keeps the deleter: it lets go of the courier, and so of the
  // store.
  std::shared_ptr<Courier> held(
      self.get(), [owned = std::shared_ptr<Courier>(self)](Courier* courier) mutable {
        if (courier->process_ == ::getpid()) {
          courier->end();
        } else {
          new auto(owned);  // in a fork, which has none of its threads, and may have its lock: so
                            // it never ends
        }
        owned.reset();
      });
  if (process_group) {
    known.held[process_group] = held;
    known.past.erase(process_group);
  }
  return held;
}

void Courier::end() {
  std::unique_lock lock(mutex_);
  ending_ = true;
  leaving_ = leaving_ || made_here_;  // nobody is left who could go on with it
  changed_.notify_all();
  wake_.notify_all();
  // A call that nobody waited for may never end, nor a question to a store that no longer answers.
  const bool rest = !under_way_.left && changed_.wait_for(lock, to_rest(), [&] {
    return busy_ == 0 && jobs_.empty() && (unwatched_ || !leaving_);
  });
  const auto done = std::exchange(done_, {});
  left_behind_ = !rest;
  const bool comes_back = rest && !leaving_ && !broken_;
  lock.unlock();
  for (auto* thread : {&thread_, &sentry_}) {
    rest ? thread->join() : thread->detach();
  }
  if (comes_back) {
    registry().remember(transport_);
  }
}

void Courier::set_while_waiting(WhileWaiting call) {
  registry().while_waiting = call;
}

Milliseconds Courier::to_rest() const {
  return leaving_ && hosts() && !unwatched_ ? kToServe + kGrace : kRest;  // the sentry serves
}

void Courier::leave() {
  auto& known = registry();
  std::unique_lock known_lock(known.mutex);
  const auto past = std::exchange(known.past, {});
  known_lock.unlock();
  std::vector<std::shared_ptr<Courier>> again;  // for their goodbye
  for (const auto& [process_group, each] : past) {
    if (auto transport = each.there()) {
      again.push_back(of(std::move(*transport)));
    }
  }
  auto all = known.all();
  std::erase_if(all, [](const auto& courier) { return courier->process_ != ::getpid(); });
  for (const auto& courier : all) {
    const std::lock_guard guard(courier->mutex_);
    courier->ending_ = courier->leaving_ = true;
    courier->changed_.notify_all();
    courier->wake_.notify_all();
  }
  for (const auto& courier : all) {
    std::unique_lock lock(courier->mutex_);
    const auto left = [&] {
      return courier->unwatched_ || courier->under_way_.left;
    };  // in a store, for good
    courier->changed_.wait_for(lock, courier->to_rest(), left);
  }
}

void Courier::start(std::shared_ptr<Job> job) {
  if (::getpid() != process_) {
    throw UsageError(
        "[" + job->call.group + "] " + job->call.text +
        ": this process is a fork of the one that made the group, " +
        "and has none of its threads. Fix: make groups after the fork.");
  }
  ++registry().started;
  std::vector<std::shared_ptr<Job>> done;
  const std::lock_guard guard(mutex_);
  if (leaving_) {
    throw UsageError(
        "[" + job->call.group + "] " + job->call.text +
        ": this process is ending, and its groups have ended before it.");
  }
  done = std::exchange(done_, {});
  jobs_.push_back(std::move(job));
  changed_.notify_all();
}

void Courier::wait(Job& job) {
  std::vector<std::shared_ptr<Job>> done;
  std::unique_lock lock(mutex_);
  auto& [moving, left, due, until] = under_way_;
  bool stopped = false;
  while (!job.done) {
    changed_.wait_until(
        lock, std::min(until, Clock::now() + kPulse), [&] { return job.done || left; });
    if (!job.done && !left) {
      lock.unlock();
      call_while_waiting(job);
      lock.lock();
    }
    const auto late = until < Clock::time_point::max() ? Clock::now() - until : Clock::duration(-1);
    if (!job.done && !stopped && late >= kOverslept) {
      stopped =
          true;  // this process itself: its threads were as well, and are given a second chance
      until = Clock::now() + kGrace;
    } else if (!job.done && late.count() >= 0) {
      broken_ = broken_ ? broken_ : store_is_gone(job.call);
      left = true;
    }
    if (!job.done && left) {
      std::rethrow_exception(broken_);
    }
  }
  done = std::exchange(done_, {});
  if (job.error) {
    std::rethrow_exception(job.error);
  }
}

void Courier::call_while_waiting(Job& job) {
  const auto call = registry().while_waiting.load();
  if (!call) {
    return;
  }
  try {
    call();
  } catch (...) {
    // Its result would go nowhere. The sentry tells those who wait for others, before the caller
    // may let go of the group, and with it of the sentry.
    std::unique_lock lock(mutex_);
    job.withdrawn = true;
    changed_.wait_for(
        lock, kGrace, [&] { return job.done || under_way_.moving || under_way_.left; });
    throw;
  }
}

void Courier::withdraw() {
  const std::lock_guard guard(mutex_);
  for (const auto& job : jobs_) {
    job->withdrawn = true;
  }
}

// A call that this rank takes no part in. Where all others have come to it they see the complaint.
std::shared_ptr<Job> Courier::start_abandoning() {
  withdraw();
  auto job = std::make_shared<Job>();
  job->call = {"leave", "was interrupted", "interrupted", kToAbandon};
  job->withdrawn = true;
  try {
    start(job);
  } catch (const UsageError&) {
    job->done = true;  // the process ends, and others hear of that
  }
  return job;
}

// It raises what others are told, or that the store is gone; the caller has a reason of its own to
// leave.
void Courier::wait_in_any_case(Job& job) {
  try {
    wait(job);
  } catch (const std::exception&) {
    return;
  }
}

void Courier::abandon() {
  wait_in_any_case(*start_abandoning());
}

void Courier::abandon_all() {
  std::vector<std::pair<std::shared_ptr<Courier>, std::shared_ptr<Job>>> left;
  for (const auto& courier : registry().all()) {
    std::unique_lock lock(courier->mutex_);
    const bool ends = courier->ending_ || courier->process_ != ::getpid();
    lock.unlock();
    if (!ends) {
      left.emplace_back(courier, courier->start_abandoning());
    }
  }
  for (const auto& [courier, job] : left) {
    courier->wait_in_any_case(*job);
  }
}

void Courier::make_process_group(const std::function<ProcessGroupPtr(const StorePtr&)>& make) {
  transport_.process_group = make(
      c10::make_intrusive<c10d::PrefixStore>(own_->prefix + "transport", own_->store));
}

void Courier::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) {
      if (left_behind_) {
        // Nobody is left to end them on, and Python may be ending: so they are not ended at all.
        static_cast<void>(new auto(std::exchange(done_, {})));
      }
      return;
    }
    auto job = jobs_.front();
    auto error = broken_;
    ++busy_;
    lock.unlock();
    error = error ? error : make(*job);
    lock.lock();
    under_way_ = {};
    broken_ = broken_ ? broken_ : error;
    job->error = error;
    job->done = true;
    jobs_.pop_front();
    done_.push_back(std::move(job));
    --busy_;
    changed_.notify_all();
  }
}

std::exception_ptr Courier::make(Job& job) {
  expect(job.call.timeout);
  try {
    connect();
    const auto timeout = job.timeout ? job.timeout(*own_words_) : job.call.timeout;
    expect(timeout);
    {
      const std::lock_guard guard(mutex_);
      job.call.timeout = timeout;
      under_way_.due = Clock::now() + timeout;
    }
    agreement_->reach(job.call);
    if (job.move) {
      move(job);
    }
  } catch (const CollectiveError& error) {
    tell(error);
    return std::current_exception();
  } catch (const std::exception&) {  // what the store raises
    return store_is_gone(job.call);
  }
  return nullptr;
}

Board Courier::own_board() const {
  return detail::own_board(transport_.store).in_life(transport_.life);
}

Board Courier::shared_board() const {
  return detail::shared_board(transport_.store).in_life(transport_.life);
}

void Courier::connect() {
  if (before_) {
    std::unique_lock lock(before_->mutex_);
    before_->changed_.wait(lock, [&] { return before_->jobs_.empty(); });
  }
  before_.reset();
  if (!own_) {
    own_ = own_board();
    own_words_ = beside(*own_, transport_.store, transport_.words);
    const std::lock_guard guard(mutex_);
    agreement_ = std::make_unique<Agreement>(
        *own_, *own_words_, transport_.ranks, transport_.index, [this] {
          expect(Milliseconds(0));
        });
  }
}

void Courier::move(Job& job) {
  expect(job.call.timeout);
  {
    const std::lock_guard guard(mutex_);
    under_way_.moving = true;
    under_way_.due = Clock::now() + job.call.timeout + kLate;
  }
  const auto stream = job.stream ? c10::OptionalStreamGuard(*job.stream)
                                 : c10::OptionalStreamGuard();
  const at::NoGradGuard no_grad;
  std::string reason;
  try {
    job.move(transport_.process_group.get());
    return;
  } catch (const std::exception& error) {
    reason = error.what();
  }
  agreement_->fail(job.call, reason.substr(0, reason.find('\n')));  // what follows is a stack
}

void Courier::expect(Milliseconds longest) {
  const std::lock_guard guard(mutex_);
  under_way_.until = Clock::now() + longest + kGrace;
}

std::exception_ptr Courier::store_is_gone(const Call& call) const {
  std::vector<int> host;
  std::string who = "Its launcher hosts it";
  if (transport_.store_host) {
    host.push_back(*transport_.store_host);
    who = ranks_text(host) + " hosts it";
  }
  return std::make_exception_ptr(CollectiveError(
      "[" + call.group + "] " + call.text + ": the store does not answer. " + who +
          ", and has ended or is stopped. Nothing that was given has changed. Fix: look at its "
          "output.",
      host));
}

// Before whoever made the call knows of it, and may end the process.
void Courier::tell(const CollectiveError& error) {
  auto& known = registry();
  {
    const std::lock_guard guard(known.words_mutex);
    known.failure = word_of(error);
    known.failed_after = known.started;
  }
  for (const auto& courier : known.all()) {
    try {
      courier->leave_word();
    } catch (const std::exception&) {
      continue;  // the store is gone: calls of that group will say so
    }
  }
}

// Where this process waits, or what it has failed of, unless it went on after that.
void Courier::leave_word() {
  auto& known = registry();
  std::unique_lock lock(mutex_);
  const auto board = words_;
  lock.unlock();
  if (!board) {
    return;
  }
  const std::lock_guard guard(known.words_mutex);
  std::vector<std::string> words;
  if (!known.failure.empty() && known.failed_after == known.started) {
    words.push_back(known.failure);
  }
  for (const auto& courier : known.all()) {
    if (auto word = courier->word(*board); !word.empty()) {
      words.push_back(std::move(word));
    }
  }
  auto& left = known.words[board->prefix];
  if (const auto word = joined(words); word != left) {
    detail::leave_word(*board, transport_.ranks[transport_.index], word);
    left = word;
  }
}

std::string Courier::word(const Board& board) {
  const std::lock_guard guard(mutex_);
  if (jobs_.empty() || !agreement_ || !board_ || board_->store != board.store) {
    return "";
  }
  return word_of(
      Waiting{jobs_.front()->call.group, board_->prefix, agreement_->sequence(), transport_.ranks});
}

}  // namespace retape::dist::detail
