#include "dist/call_fingerprint.h"

#include "dist/rank_text.h"
#include "dist/store_text.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <thread>

namespace retape::dist::detail {

namespace {

constexpr std::chrono::seconds kForTexts{1};

// A complaint differs from every call, and from another rank's complaint.
std::string fingerprint(const Call& call, int index) {
  if (!call.complaint.empty()) {
    return "complaint " + std::to_string(index);
  }
  const auto all = call.group + "\n" + call.text;
  const auto hash = XXH3_128bits(all.data(), all.size());
  return std::to_string(hash.high64) + "." + std::to_string(hash.low64);
}

constexpr char kGate[] = "gate";

// "4 m1500 2 3": the call, what was decided, how long was waited, and the indices.
std::string gate_text(uint64_t sequence, const Decision& decision) {
  return std::to_string(sequence) + " " + static_cast<char>(decision.kind) +
      std::to_string(decision.waited.count()) + " " + numbers_text(decision.indices);
}

Decision decision_in(const std::string& gate) {
  const auto kind = gate.find(' ') + 1, indices = gate.find(' ', kind) + 1;
  return {
      static_cast<Decision::Kind>(gate.at(kind)),
      numbers_from(gate.substr(indices)),
      Milliseconds(std::stoll(gate.substr(kind + 1)))};
}

// What a rank says of its call: "!" and a complaint, or "." and group and text.
using Said = std::map<std::string, std::vector<int>>;

std::string group_in(const std::string& said) {
  return said.substr(1, said.find('\n') - 1);
}
std::string text_in(const std::string& said) {
  return said.substr(said.find('\n') + 1);
}
bool is_complaint(const std::string& said) {
  return said[0] == '!';
}

// Of a long text the first of its entries that is not in the other, of as many: "sum ..., "w7"
// Float[3], ...".
std::string in_short(const std::string& text, const std::string& other) {
  constexpr size_t kMost = 240;
  constexpr std::string_view kBetween = ", \"";
  if (text.size() <= kMost) {
    return text;
  }
  const auto differ = static_cast<size_t>(
      std::mismatch(text.begin(), text.end(), other.begin(), other.end()).first - text.begin());
  const auto before = text.rfind(kBetween, differ);
  const auto begin = before == std::string::npos ? 0 : before;
  const auto end = std::min(text.find(kBetween, std::max(differ, begin + 1)), begin + kMost);
  return (begin > 0 ? text.substr(0, text.find('"')) + "..." : "") +
      text.substr(begin, end - begin) + (end < text.size() ? " ..." : "");
}

// What most ranks would do; the end where no call has most.
Said::const_iterator usual_among(const Said& said) {
  auto usual = said.end();
  size_t most = 0;
  for (auto it = said.begin(); it != said.end(); ++it) {
    if (is_complaint(it->first) || it->second.size() < most) {
      continue;
    }
    usual = it->second.size() > most ? it : said.end();
    most = it->second.size();
  }
  return usual;
}

// Where most do the same, the others are odd; else all of them may be.
CollectiveError explain_difference(const std::string& at, const Said& said) {
  const auto usual = usual_among(said);
  std::set<std::string> groups;
  int calls = 0;  // different ones; complaints alone are not about the order of calls
  for (const auto& [what, ranks] : said) {
    if (!is_complaint(what)) {
      groups.insert(group_in(what));
      ++calls;
    }
  }
  const auto would = [&](const std::string& what, const std::vector<int>& ranks) {
    if (is_complaint(what)) {
      return ranks_text(ranks) + ": " + what.substr(1);
    }
    const auto other = std::find_if(said.begin(), said.end(), [&](const auto& each) {
      return each.first != what && !is_complaint(each.first);
    });
    return ranks_text(ranks) + " would " +
        in_short(text_in(what), other == said.end() ? "" : text_in(other->first)) +
        (groups.size() > 1 ? " in \"" + group_in(what) + "\"" : "");
  };
  std::string text = at, sep;
  std::vector<int> odd;
  for (auto it = said.begin(); it != said.end(); ++it) {
    if (it != usual) {
      text += sep + would(it->first, it->second);
      sep = "; ";
      odd.insert(odd.end(), it->second.begin(), it->second.end());
    }
  }
  if (usual != said.end()) {
    text += ", and " + would(usual->first, usual->second);
  }
  std::sort(odd.begin(), odd.end());
  const char* fix =
      " Fix: every rank makes the same calls with the same tensors in the same order.";
  return CollectiveError(text + ". Nothing was sent." + (calls < 2 ? "" : fix), odd);
}

}  // namespace

CallFingerprint::CallFingerprint(StorePtr store, std::vector<int> ranks, int index)
    : store_(std::move(store)),
      ranks_(std::move(ranks)),
      index_(index) {}

std::string CallFingerprint::at(const Call& call) const {
  return "[" + call.group + "] call " + std::to_string(sequence_) + ", " + call.text + ": ";
}

std::optional<Decision> CallFingerprint::arrive(const Call& call) {
  ++sequence_;
  const auto mark = std::to_string(sequence_) + " " + fingerprint(call, index_);
  store_->set("mark/" + std::to_string(index_), mark);
  // No rank comes to a call before all have come to the one before it.
  const auto arrived = static_cast<uint64_t>(store_->add("arrived", 1));
  if (arrived != sequence_ * ranks_.size()) {
    return std::nullopt;
  }
  const auto kind = all_marks_are(mark) ? Decision::Kind::Agreed : Decision::Kind::Differ;
  return decide({kind});
}

bool CallFingerprint::all_marks_are(const std::string& mark) const {
  std::vector<std::string> keys;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    keys.push_back("mark/" + std::to_string(i));
  }
  const auto marks = store_->multiGet(keys);
  return std::all_of(marks.begin(), marks.end(), [&](const std::vector<uint8_t>& each) {
    return std::equal(each.begin(), each.end(), mark.begin(), mark.end());
  });
}

// One key for all gates: a decision takes the place of the one before, which was to go on.
std::optional<Decision> CallFingerprint::look() const {
  const auto text = read(*store_, kGate);
  return text && std::stoull(*text) == sequence_ ? std::optional(decision_in(*text)) : std::nullopt;
}

Decision CallFingerprint::decide(uint64_t sequence, const Decision& decision) const {
  const auto before = sequence == 1 ? "" : gate_text(sequence - 1, {Decision::Kind::Agreed});
  return decision_in(store_->compareSet(kGate, before, gate_text(sequence, decision)));
}

Decision CallFingerprint::decide(const Decision& decision) const {
  return decide(sequence_, decision);
}

Decision CallFingerprint::decide_next(const Decision& decision) const {
  return decide(sequence_ + 1, decision);
}

std::vector<int> CallFingerprint::absent() const {
  std::vector<int> absent;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const auto mark = read(*store_, "mark/" + std::to_string(i));
    if (!mark || std::stoull(*mark) < sequence_) {
      absent.push_back(static_cast<int>(i));
    }
  }
  return absent;
}

CollectiveError CallFingerprint::difference(
    const Call& call, const std::function<void()>& meanwhile) const {
  const auto key = "text/" + std::to_string(sequence_) + "/";
  store_->set(
      key + std::to_string(index_),
      call.complaint.empty() ? "." + call.group + "\n" + call.text : "!" + call.complaint);
  const auto until = std::chrono::steady_clock::now() + kForTexts;
  Said said;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    auto text = read(*store_, key + std::to_string(i));
    while (!text && std::chrono::steady_clock::now() < until) {
      meanwhile();
      std::this_thread::sleep_for(Milliseconds(10));
      text = read(*store_, key + std::to_string(i));
    }
    said[text.value_or("!ended before it published its call")].push_back(ranks_[i]);
  }
  return explain_difference("[" + call.group + "] call " + std::to_string(sequence_) + ": ", said);
}

}  // namespace retape::dist::detail
