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
// How long texts and answers of ranks that are there may take.
constexpr Milliseconds kPatience{1000};

std::string fingerprint(const Call& call) {
  const auto hash = XXH3_128bits(call.text.data(), call.text.size());
  // A complaint has a fingerprint of its own: so the gate is never opened.
  return std::to_string(hash.high64) + "." + std::to_string(hash.low64) + (call.complaint.empty() ? "" : ".no");
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
    c10::intrusive_ptr<c10d::Store> store, std::string group, std::vector<int> ranks, int index, Milliseconds timeout)
    : store_(std::move(store)), group_(std::move(group)), ranks_(std::move(ranks)), index_(index), timeout_(timeout) {
  // A second group of the same name over the same store must not find the keys of the first.
  const auto made = store_->add("retape/" + group_ + "/made/" + std::to_string(index_), 1);
  prefix_ = "retape/" + group_ + "/" + std::to_string(made) + "/";
}

std::string Agreement::key(const std::string& what) const {
  return prefix_ + what;
}

void Agreement::reach(const Call& call) {
  ++sequence_;
  const auto before = sequence_ - 1;
  const auto counter = key("same/" + std::to_string(sequence_) + "/" + fingerprint(call));
  store_->set(key("mark/" + std::to_string(index_)), std::to_string(sequence_));
  store_->add(counter, 1);
  const auto come = store_->add(key("come/" + std::to_string(sequence_)), 1);
  const auto gate = key("gate/" + std::to_string(sequence_));
  if (come == static_cast<int64_t>(ranks_.size())) {
    const bool same = store_->add(counter, 0) == come && call.complaint.empty();
    store_->set(gate, same ? kAgreed : kBad);
  }
  if (open_gate(call) == kBad) {
    explain_difference(call);
  }
  // All have come to this call, so all have left the one before.
  if (index_ == 0 && before > 0) {
    forget(before);
    store_->deleteKey(last_counter_);
  }
  last_counter_ = counter;
}

std::string Agreement::open_gate(const Call& call) {
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

bool Agreement::has_come(const std::string& mark, int index) {
  const auto name = key(mark + std::to_string(index));
  return store_->check({name}) && std::stoull(store_->get_to_str(name)) >= sequence_;
}

void Agreement::explain_absence(const Call& call) {
  std::vector<int> absent;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!has_come("mark/", static_cast<int>(i))) {
      absent.push_back(ranks_[i]);
    }
  }
  if (absent.empty()) {  // all came, and the one that came last ended before it opened the gate
    absent = missing(kPatience);
  }
  throw CollectiveError(
      "[" + group_ + "] call " + std::to_string(sequence_) + ", " + call.text + ": " + ranks_text(absent) +
          " did not come within " + std::to_string(timeout_.count()) +
          " ms. Nothing was sent. It has ended, is stopped, or skipped the call. Fix: look at its output; a longer "
          "timeout if it is only slow.",
      absent);
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
  std::string sep;
  for (const auto& [what, ranks] : said) {
    const bool complains = what[0] == '!';
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
      text + ". Nothing was sent. Fix: every rank makes the same calls with the same tensors in the same order.", odd);
}

std::vector<int> Agreement::missing(Milliseconds patience) {
  const auto mark = "left/";
  store_->set(key(mark + std::to_string(index_)), std::to_string(sequence_));
  const auto until = std::chrono::steady_clock::now() + patience;
  std::vector<int> absent;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const auto left = std::chrono::duration_cast<Milliseconds>(until - std::chrono::steady_clock::now());
    try {
      store_->wait({key(mark + std::to_string(i))}, std::max(left, Milliseconds(1)));
    } catch (const c10::Error&) {
      absent.push_back(ranks_[i]);
    }
  }
  return absent;
}

void Agreement::forget(uint64_t sequence) {
  store_->deleteKey(key("gate/" + std::to_string(sequence)));
  store_->deleteKey(key("come/" + std::to_string(sequence)));
}

}  // namespace retape::dist::detail
