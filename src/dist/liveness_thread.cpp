// The sentry's thread of a courier: it answers for a rank that waits, looks after the call under
// way, and says goodbye.
#include "dist/collective_queue.h"

#include <algorithm>
#include <thread>

namespace retape::dist::detail {

using Clock = std::chrono::steady_clock;

// What the sentry's thread saw before it let go of the lock.
struct Courier::Glance {
  std::optional<Call> call;  // under way, and looked after
  bool moving;
  bool withdrawn;
  Milliseconds overdue;
};

Courier::Glance Courier::glance() const {
  const auto& [moving, left, due, until] = under_way_;
  const bool due_some_time = due < Clock::time_point::max() && !jobs_.empty();
  return {
      due_some_time ? std::optional(jobs_.front()->call) : std::nullopt,
      moving,
      due_some_time && jobs_.front()->withdrawn,
      std::chrono::duration_cast<Milliseconds>(Clock::now() - due)};
}

void Courier::watch() {
  std::unique_lock lock(mutex_);
  std::optional<Sentry> sentry;
  bool answers = true;
  auto looked = Clock::time_point::min();
  const auto pulse = [&] {
    const auto due = under_way_.due, next = Clock::now() + kPulse;
    return !sentry ? Clock::now() : due > looked ? std::min(due, next) : next;
  };
  while (answers && !wake_.wait_until(lock, pulse(), [&] { return ending_ || broken_; })) {
    looked = Clock::now();
    const auto seen = glance();
    answers = ask_store(lock, [&] { look_around(sentry, seen); });
  }
  if (leaving_ && !broken_ && answers) {
    ask_store(lock, [&] { say_goodbye(sentry); });
  }
  unwatched_ = true;
  changed_.notify_all();
}

// Without the lock; false: the store is gone, which calls will say, and nobody is left to tell.
bool Courier::ask_store(std::unique_lock<std::mutex>& lock, const std::function<void()>& ask) {
  bool answers = true;
  ++busy_;
  lock.unlock();
  try {
    ask();
  } catch (const std::exception&) {
    answers = false;
  }
  lock.lock();
  --busy_;
  changed_.notify_all();
  return answers;
}

void Courier::post(std::optional<Sentry>& sentry) {
  if (!sentry) {
    const auto board = shared_board();
    sentry.emplace(board, transport_.ranks.size(), transport_.index);
    const std::lock_guard guard(mutex_);
    board_ = board;
    words_ = beside(board, transport_.store, transport_.words);
  }
}

void Courier::look_around(std::optional<Sentry>& sentry, const Glance& seen) {
  post(sentry);
  leave_word();
  look(*sentry, seen.moving ? Answer::InACall : Answer::Elsewhere);
  if (seen.call && !seen.moving) {
    look_at_gate(seen);
  } else if (seen.call && seen.overdue.count() >= 0) {
    look_after(*seen.call, *sentry);
  }
}

void Courier::say_goodbye(std::optional<Sentry>& sentry) {
  post(sentry);
  RollCall roll(*board_, transport_.ranks.size());
  roll.leave(transport_.index);
  const auto until = Clock::now() + kToServe;
  const auto somebody_stays = [&] {
    const auto there = roll.ask([&] { look(*sentry, Answer::Elsewhere); });
    for (size_t i = 0; i < there.size(); ++i) {
      if (there[i] && !roll.has_left(i)) {
        return true;
      }
    }
    return false;
  };
  // Who does not answer once may be busy; who does not answer twice has ended.
  while (hosts() && Clock::now() < until && (somebody_stays() || somebody_stays())) {
    std::this_thread::sleep_for(kPulse);
  }
}

void Courier::look(Sentry& sentry, Answer answer) {
  const auto error = sentry.look(answer);
  const std::lock_guard guard(mutex_);
  if (error && !broken_ && jobs_.empty()) {  // a call under way finds out itself
    broken_ = std::make_exception_ptr(*error);
  }
}

// Not all have come: in time, or never will.
void Courier::look_at_gate(const Glance& seen) {
  std::unique_lock lock(mutex_);
  const auto* const agreement = agreement_.get();
  lock.unlock();
  if (!agreement) {
    return;
  }
  if (seen.withdrawn) {
    agreement->withdraw(*board_);
  } else if (seen.overdue.count() >= 0) {
    agreement->give_up(*board_, *seen.call, seen.overdue);
  } else {
    agreement->give_up_on_those_who_left(*board_, seen.call->timeout + seen.overdue);
  }
}

// A transport is over its time: because a rank has ended, or because there is much to move.
void Courier::look_after(const Call& call, Sentry& sentry) {
  RollCall roll(*board_, transport_.ranks.size());
  auto said = roll.said();
  if (!said) {
    std::vector<Answer> answers;
    for (const bool there : roll.ask([&] { look(sentry, Answer::InACall); })) {
      answers.push_back(there ? Answer::InACall : Answer::None);
    }
    const auto error = failure_of(call, transport_.ranks, answers, "it did not end in time");
    said = error.ranks().empty() ? roll.said() : roll.say(error);
  }
  std::unique_lock lock(mutex_);
  if (!under_way_.moving) {
    return;
  }
  if (!said) {
    under_way_.due = Clock::now() + call.timeout;
    under_way_.until = under_way_.due + kGrace;
    return;
  }
  broken_ = broken_ ? broken_ : std::make_exception_ptr(*said);
  under_way_.left = true;
  lock.unlock();
  tell(*said);
}

}  // namespace retape::dist::detail
