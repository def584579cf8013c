#include "dist/liveness_monitor.h"

#include "dist/rank_text.h"
#include "dist/store_text.h"

#include <algorithm>
#include <set>
#include <thread>

namespace retape::dist::detail {

namespace {

using Clock = std::chrono::steady_clock;

// Without a heartbeat for so long a rank is gone: four of them in a row are missing.
constexpr Milliseconds kSilent{900};
// Ranks that are there may be about to raise for one that is gone.
constexpr Milliseconds kToRaise{1300};
constexpr Milliseconds kBetweenLooks{20};
// For a rank that is busy while it ends, and would lose its store.
constexpr Milliseconds kSilentAtTheEnd{2000};
constexpr Milliseconds kBetweenLooksAtTheEnd{100};

}  // namespace

std::string written(const CollectiveError& error) {
  return numbers_text(error.ranks()) + "\n" + error.what();
}

CollectiveError error_from(const std::string& written) {
  const auto end = written.find('\n');
  return CollectiveError(written.substr(end + 1), numbers_from(written.substr(0, end)));
}

LivenessMonitor::LivenessMonitor(StorePtr group, StorePtr life, std::vector<int> ranks, int index)
    : group_(std::move(group)),
      life_(std::move(life)),
      ranks_(std::move(ranks)),
      index_(index) {}

void LivenessMonitor::beat(const std::string& failure) {
  life_->set("beat/" + std::to_string(index_), std::to_string(++beats_) + "\n" + failure);
}

std::string LivenessMonitor::beat_of(int index) const {
  return read(*life_, "beat/" + std::to_string(index)).value_or("\n");
}

void LivenessMonitor::leave() const {
  group_->set("left/" + std::to_string(index_), "");
  group_->set("left", "");
}

bool LivenessMonitor::has_left(int index) const {
  return group_->check({"left/" + std::to_string(index)});
}

std::optional<CollectiveError> LivenessMonitor::verdict() const {
  const auto text = read(*life_, "error");
  return text ? std::optional(error_from(*text)) : std::nullopt;
}

CollectiveError LivenessMonitor::decide(const CollectiveError& error) const {
  return error_from(detail::decide(*life_, "error", written(error)));
}

LivenessMonitor::Blame LivenessMonitor::examine(
    const std::vector<int>& indices, const std::function<void()>& meanwhile) const {
  struct Missed {
    int index;
    std::string first, now;  // heartbeats
    bool left;
    bool silent() const { return first == now; }
    std::string failure() const { return now.substr(now.find('\n') + 1); }
  };
  std::vector<Missed> missed;
  for (const int index : indices) {
    const bool self = index == index_;  // there, and late: what others find out comes first
    const auto beat = self ? "\n" : beat_of(index);
    missed.push_back({index, self ? "" : beat, beat, !self && has_left(index)});
  }
  const auto unexplained = [](const Missed& each) { return !each.left && each.failure().empty(); };
  const auto begin = Clock::now();
  while (true) {
    if (const auto known = verdict()) {
      throw *known;
    }
    const auto waited = Clock::now() - begin;
    const bool all_explained = std::none_of(missed.begin(), missed.end(), unexplained);
    const bool one_is_gone = std::any_of(missed.begin(), missed.end(), [&](const Missed& each) {
      return unexplained(each) && each.silent();
    });
    if (all_explained || waited >= kToRaise || (one_is_gone && waited >= kSilent)) {
      break;
    }
    meanwhile();
    std::this_thread::sleep_for(kBetweenLooks);
    for (auto& each : missed) {
      each.now = each.index == index_ ? each.now : beat_of(each.index);
    }
  }
  std::set<int> culprits, ended;
  Blame blame;
  for (const auto& each : missed) {
    const int rank = ranks_[each.index];
    if (!each.failure().empty()) {
      const auto failure = error_from(each.failure());
      culprits.insert(failure.ranks().begin(), failure.ranks().end());
      blame.why += " " + ranks_text({rank}) + " has failed elsewhere: " + failure.what();
    } else if (each.left) {
      ended.insert(rank);
      blame.why += " " + ranks_text({rank}) + " has ended.";
    } else if (each.silent()) {
      culprits.insert(rank);
    }
  }
  const auto& named = culprits.empty() ? ended : culprits;
  blame.ranks.assign(named.begin(), named.end());
  return blame;
}

void LivenessMonitor::serve(Clock::time_point until) const {
  std::vector<std::string> beats(ranks_.size());
  std::vector<Clock::time_point> changed(ranks_.size(), Clock::now());
  const auto stays = [&](int index) {
    const auto beat = beat_of(index);
    if (beat != beats[index]) {
      beats[index] = beat;
      changed[index] = Clock::now();
    }
    return Clock::now() - changed[index] < kSilentAtTheEnd && !has_left(index);
  };
  bool alone = false;
  while (!alone && Clock::now() < until) {
    alone = true;
    for (int index = 0; index < static_cast<int>(ranks_.size()); ++index) {
      alone = alone && (index == index_ || !stays(index));
    }
    if (!alone) {
      std::this_thread::sleep_for(kBetweenLooksAtTheEnd);
    }
  }
}

}  // namespace retape::dist::detail
