#include "dist/agreement.h"

#include <retape/dist/group.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <map>

namespace retape::dist::detail {

namespace {

constexpr char kAgreed[] = "agreed";
constexpr char kBad[] = "bad";
constexpr char kTrouble[] = "trouble";
// How long texts and answers of ranks that are there may take.
constexpr Milliseconds kPatience{1000};

std::string fingerprint(const Call& call) {
  const auto hash = XXH3_128bits(call.text.data(), call.text.size());
  // A complaint has a fingerprint of its own: so the gate is never opened.
  return std::to_string(hash.high64) + "." + std::to_string(hash.low64) + (call.complaint.empty() ? "" : ".no");
}

// A second group of the same name over the same store must not find the keys of the first.
std::string prefix_for(c10d::Store& store, const std::string& group, int index) {
  const auto made = store.add("retape/" + group + "/made/" + std::to_string(index), 1);
  return "retape/" + group + "/" + std::to_string(made) + "/";
}

}  // namespace

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

Agreement::Agreement(
    c10::intrusive_ptr<c10d::Store> store,
    std::string group,
    std::vector<int> ranks,
    int index,
    Milliseconds timeout,
    std::function<void()> goes_on)
    : store_(std::move(store)),
      group_(std::move(group)),
      prefix_(prefix_for(*store_, group_, index)),
      ranks_(std::move(ranks)),
      index_(index),
      timeout_(timeout),
      goes_on_(std::move(goes_on)),
      roll_(roll(store_)) {}

std::string Agreement::key(const std::string& what) const {
  return prefix_ + what;
}

std::string Agreement::at(const Call& call) const {
  return "[" + group_ + "] call " + std::to_string(sequence_) + ", " + call.text + ": ";
}

void Agreement::reach(const Call& call) {
  const auto before = sequence_++;
  const auto counter = key("same/" + std::to_string(sequence_) + "/" + fingerprint(call));
  store_->set(key("mark/" + std::to_string(index_)), std::to_string(sequence_));
  store_->add(counter, 1);
  const auto come = store_->add(key("come/" + std::to_string(sequence_)), 1);
  if (come == static_cast<int64_t>(ranks_.size())) {
    const bool same = store_->add(counter, 0) == come && call.complaint.empty();
    store_->set(key("gate/" + std::to_string(sequence_)), same ? kAgreed : kBad);
  }
  const auto gate = wait_at_gate(call);
  if (gate == kBad) {
    explain_difference(call);
  }
  if (gate == kTrouble) {
    fail(call, "the call before failed");
  }
  // All have come to this call, so all have left the one before.
  if (index_ == 0 && before > 0) {
    forget(before);
    store_->deleteKey(last_counter_);
  }
  last_counter_ = counter;
}

std::string Agreement::wait_at_gate(const Call& call) {
  const auto gate = key("gate/" + std::to_string(sequence_));
  try {
    store_->wait({gate}, timeout_);
  } catch (const c10::Error&) {
    // Told apart by asking: a store that is gone raises again.
    if (!store_->check({gate})) {
      explain_absence(call);
    }
  }
  return store_->get_to_str(gate);
}

bool Agreement::has_come(int index) {
  const auto mark = key("mark/" + std::to_string(index));
  return store_->check({mark}) && std::stoull(store_->get_to_str(mark)) >= sequence_;
}

void Agreement::explain_absence(const Call& call) {
  std::vector<int> absent;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!has_come(static_cast<int>(i))) {
      absent.push_back(static_cast<int>(i));
    }
  }
  // One that is stuck in the call before, because another has ended there, is not to blame.
  const auto answers = call_the_roll();
  std::vector<int> ranks;
  for (const int index : absent) {
    if (answers[index] != Answer::InACall) {
      ranks.push_back(ranks_[index]);
    }
  }
  if (ranks.empty()) {  // all came, and the one that came last ended before it opened the gate
    blame(call, answers, "the gate was not opened");
  }
  give_up(
      at(call) + ranks_text(ranks) + " did not come within " + std::to_string(timeout_.count()) +
          " ms. Nothing was sent. It has ended, is stopped, or skipped the call. Fix: look at its output; a longer "
          "timeout if it is only slow.",
      ranks);
}

void Agreement::fail(const Call& call, const std::string& reason) {
  blame(call, call_the_roll(), reason);
}

std::vector<Answer> Agreement::call_the_roll() {
  goes_on_();
  // Wakes those who have left this call for the next one.
  store_->set(key("gate/" + std::to_string(sequence_ + 1)), kTrouble);
  return roll_.call(Answer::InACall);
}

void Agreement::blame(const Call& call, const std::vector<Answer>& answers, const std::string& reason) {
  std::vector<int> silent;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (answers[i] == Answer::None) {
      silent.push_back(ranks_[i]);
    }
  }
  if (silent.empty()) {
    if (const auto said = roll_.said()) {
      throw *said;
    }
  }
  give_up(
      at(call) + (silent.empty() ? "failed, and all ranks are there" : ranks_text(silent) + " ended or stopped") +
          ": " + reason + ". Nothing that was given has changed. Fix: look at the output of that rank.",
      silent);
}

void Agreement::give_up(const std::string& text, std::vector<int> ranks) {
  const CollectiveError error(text, std::move(ranks));
  roll_.say(error);
  throw error;
}

RollCall Agreement::roll(c10::intrusive_ptr<c10d::Store> store) const {
  return RollCall(std::move(store), prefix_, static_cast<int>(ranks_.size()), index_);
}

void Agreement::explain_difference(const Call& call) {
  const auto at = std::to_string(sequence_) + "/";
  store_->set(key("text/" + at + std::to_string(index_)), call.complaint.empty() ? call.text : "!" + call.complaint);
  std::map<std::string, std::vector<int>> said;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const auto name = key("text/" + at + std::to_string(i));
    try {
      store_->wait({name}, kPatience);
      said[store_->get_to_str(name)].push_back(ranks_[i]);
    } catch (const c10::Error&) {
      said["!ended before it told what it was doing"].push_back(ranks_[i]);
    }
  }
  // Where most do the same, the others are odd; of two alike, those that come later.
  const auto usual = std::max_element(said.begin(), said.end(), [](const auto& a, const auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() < b.second.size() : a.second > b.second;
  });
  std::string text = "[" + group_ + "] call " + std::to_string(sequence_) + ": ";
  std::vector<int> odd;
  int calls = 0;  // different ones; complaints alone are not for the order of calls
  std::string sep;
  for (const auto& [what, ranks] : said) {
    const bool complains = what[0] == '!';
    calls += complains ? 0 : 1;
    if (&what == &usual->first && !complains) {
      continue;
    }
    text += sep + ranks_text(ranks) + (complains ? ": " + what.substr(1) : " would " + what);
    sep = "; ";
    odd.insert(odd.end(), ranks.begin(), ranks.end());
  }
  if (usual->first[0] != '!') {
    text += ", and " + ranks_text(usual->second) + " would " + usual->first;
  }
  throw CollectiveError(
      text + ". Nothing was sent." +
          (calls < 2 ? "" : " Fix: every rank makes the same calls with the same tensors in the same order."),
      odd);
}

void Agreement::forget(uint64_t sequence) {
  store_->deleteKey(key("gate/" + std::to_string(sequence)));
  store_->deleteKey(key("come/" + std::to_string(sequence)));
}

}  // namespace retape::dist::detail
