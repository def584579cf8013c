#include "dist/call_fingerprint.h"

#include <retape/dist/group.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <thread>

namespace retape::dist::detail {

namespace {

using Clock = std::chrono::steady_clock;

// What a gate says.
constexpr char kAgreed[] = "agreed";
constexpr char kBad[] = "bad";
constexpr char kTrouble[] = "trouble";
constexpr char kGaveUp[] =
    "gave up ";  // then after how many milliseconds, and the indices of the absent
constexpr char kWithdrawn[] =
    "withdrawn ";  // then the index of the rank whose caller was interrupted

// For a store to wait: who waits is woken.
constexpr std::chrono::hours kWithoutEnd{24};

// The call that a rank has come to.
uint64_t mark_of(const Board& board, int index) {
  return board.number("mark/" + std::to_string(index));
}

std::string fingerprint(const Call& call) {
  if (!call.complaint.empty()) {
    return "a complaint";
  }
  const auto all = call.group + "\n" + call.text;
  const auto hash = XXH3_128bits(all.data(), all.size());
  return std::to_string(hash.high64) + "." + std::to_string(hash.low64);
}

// What explain_difference compares; a complaint begins with "!", a call with ".".
std::string group_in(const std::string& said) {
  return said.substr(1, said.find('\n') - 1);
}
std::string text_in(const std::string& said) {
  return said.substr(said.find('\n') + 1);
}
bool is_complaint(const std::string& said) {
  return said[0] == '!';
}

// Whoever waits at the gate has waited for them in vain.
void decide_in_vain(
    const Board& board, uint64_t gate, Milliseconds waited, const std::vector<int>& missing) {
  board.decide(
      "gate/" + std::to_string(gate),
      kGaveUp + std::to_string(waited.count()) + " " + numbers_text(missing));
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
  const auto left_out = [](bool is) { return is ? " ..." : ""; };
  return (begin > 0 ? text.substr(0, text.find('"')) + "..." : "") +
      text.substr(begin, end - begin) + left_out(end < text.size());
}

using Said = std::map<std::string, std::vector<int>>;

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

}  // namespace

Agreement::Agreement(
    Board board, Board words, std::vector<int> ranks, int index, std::function<void()> goes_on)
    : board_(std::move(board)),
      ranks_(std::move(ranks)),
      index_(index),
      words_(std::move(words)),
      goes_on_(std::move(goes_on)),
      roll_(board_, ranks_.size()) {}

std::string Agreement::key_at(const std::string& what) const {
  return what + "/" + std::to_string(sequence());
}

std::string Agreement::at(const Call& call) const {
  return "[" + call.group + "] call " + std::to_string(sequence()) + ", " + call.text + ": ";
}

// Where an earlier Agreement of this rank, with the same process group, has ended.
void Agreement::resume() {
  resumed_ = true;
  roll_.join(index_);  // before it comes to a call: who fails in that waits for this one's answer
  sequence_ = mark_of(board_, index_);
  if (const auto said = roll_.said()) {
    throw *said;
  }
}

void Agreement::reach(const Call& call) {
  if (!resumed_) {
    resume();
  }
  const auto before = sequence_++;
  const auto gate = gate_for(call);
  if (gate == kBad) {
    explain_difference(call);
  }
  if (gate == kTrouble) {
    fail(call, "the call before failed");
  }
  if (gate.starts_with(kWithdrawn)) {
    explain_withdrawal(call, gate);
  }
  if (gate != kAgreed) {
    explain_absence(call, gate);
  }
  // All have come to this call, so all have left the one before.
  if (index_ == 0 && before > 0) {
    board_.store->deleteKey(board_.key("gate/" + std::to_string(before)));
  }
}

std::string Agreement::gate_for(const Call& call) {
  const auto mark = std::to_string(sequence()) + " " + fingerprint(call);
  board_.write("mark/" + std::to_string(index_), mark);
  // Nobody comes to a call before all have come to the one before it.
  const auto come = static_cast<uint64_t>(board_.store->add(board_.key("come"), 1));
  if (come == sequence() * ranks_.size()) {
    return board_.decide(
        key_at("gate"), call.complaint.empty() && all_would(mark) ? kAgreed : kBad);
  }
  at_gate_ = sequence();
  board_.store->wait({board_.key(key_at("gate"))}, kWithoutEnd);
  at_gate_ = 0;
  return board_.read(key_at("gate")).value();
}

bool Agreement::all_would(const std::string& mark) const {
  std::vector<std::string> keys;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    keys.push_back(board_.key("mark/" + std::to_string(i)));
  }
  const auto marks = board_.store->multiGet(keys);
  return std::all_of(marks.begin(), marks.end(), [&](const std::vector<uint8_t>& each) {
    return std::equal(each.begin(), each.end(), mark.begin(), mark.end());
  });
}

std::vector<int> Agreement::missing_at(const Board& board, uint64_t gate) const {
  std::vector<int> missing;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (mark_of(board, static_cast<int>(i)) < gate) {
      missing.push_back(static_cast<int>(i));
    }
  }
  return missing;
}

void Agreement::give_up(const Board& board, const Call& call, Milliseconds overdue) const {
  const uint64_t gate = at_gate_;
  if (gate == 0) {
    return;
  }
  const auto missing = missing_at(board, gate);
  if (missing.empty() && overdue < kPatience / 2) {
    return;  // the last one is about to decide, unless it has ended before it did
  }
  decide_in_vain(board, gate, call.timeout, missing);
}

void Agreement::give_up_on_those_who_left(const Board& board, Milliseconds waited) const {
  const uint64_t gate = at_gate_;
  const RollCall roll(board, ranks_.size());
  if (gate == 0 || !roll.somebody_left()) {
    return;
  }
  std::vector<int> left;
  for (int index = 0; index < static_cast<int>(ranks_.size()); ++index) {
    if (index != index_ && roll.has_left(index)) {
      left.push_back(index);
    }
  }
  if (!left.empty()) {
    decide_in_vain(board, gate, waited, left);
  }
}

void Agreement::withdraw(const Board& board) const {
  if (const uint64_t gate = at_gate_) {
    board.decide("gate/" + std::to_string(gate), kWithdrawn + std::to_string(index_));
  }
}

void Agreement::explain_withdrawal(const Call& call, const std::string& gate) {
  const int rank = ranks_.at(std::stoi(gate.substr(sizeof kWithdrawn - 1)));
  raise(
      at(call) + ranks_text({rank}) + " was interrupted, and left the call. " +
          "Nothing was sent. Fix: look at the output of " + ranks_text({rank}) + ".",
      {rank});
}

bool Agreement::has_come(int index) const {
  return mark_of(board_, index) >= sequence();
}

void Agreement::explain_absence(const Call& call, const std::string& gate) {
  auto missing = numbers_from(gate.substr(sizeof kGaveUp - 1));
  const auto waited = std::to_string(missing.at(0));
  missing.erase(missing.begin());
  const auto began = Clock::now();
  const auto answers = call_the_roll();
  const bool one_has_ended = std::any_of(missing.begin(), missing.end(), [&](int index) {
    return answers[index] == Answer::None && roll_.has_joined(index);
  });
  std::vector<int> late, to_blame;
  std::string whys;
  Trail trail{words_, goes_on_, began + kPatience * 3 / 2};
  for (const int index : missing) {
    if (answers[index] == Answer::InACall && !has_come(index)) {
      continue;  // stuck in the call before, because another has ended there
    }
    late.push_back(ranks_[index]);
    const auto why = blame_for(index, answers[index], one_has_ended, trail);
    to_blame.insert(to_blame.end(), why.ranks.begin(), why.ranks.end());
    const auto ended = roll_.has_left(index) ? "has ended" : why.why;
    whys += ended.empty() ? "" : " " + ranks_text({ranks_[index]}) + " " + ended + ".";
  }
  if (late.empty()) {
    blame(call, answers, "the gate was not opened");
  }
  std::sort(to_blame.begin(), to_blame.end());
  to_blame.erase(std::unique(to_blame.begin(), to_blame.end()), to_blame.end());
  // One that is only late may come while this looks for who is to blame.
  const bool had_come = std::all_of(missing.begin(), missing.end(), [&](int index) {
    return roll_.has_left(index) && has_come(index);
  });
  raise(
      at(call) + ranks_text(late) +
          (had_come ? " came, and can no longer take part"
                    : " did not come within " + waited + " ms") +
          ". Nothing was sent." +
          (whys.empty() ? " It has ended, is stopped, or skipped the call." : whys) +
          " Fix: look at the output of " + ranks_text(to_blame) +
          "; a longer timeout if it is only slow.",
      to_blame);
}

// Who is to blame for a rank that has not come: itself, unless its word leads to others.
Blame Agreement::blame_for(int index, Answer answer, bool one_has_ended, Trail& trail) const {
  const auto word = word_on(words_, ranks_[index]);
  auto blame = follow(trail, word, !one_has_ended, {board_.prefix});
  // Where one has ended, those who wait elsewhere may well wait for it.
  const bool has_ended = answer == Answer::None && roll_.has_joined(index);
  const bool excused = one_has_ended && !has_ended && !word.empty();
  if (blame.ranks.empty() && !excused) {
    blame.ranks.push_back(ranks_[index]);
  }
  if (blame.ranks == std::vector{ranks_[index]}) {
    blame.why.clear();  // for itself
  }
  return blame;
}

void Agreement::fail(const Call& call, const std::string& reason) {
  blame(call, call_the_roll(), reason);
}

std::vector<Answer> Agreement::call_the_roll() {
  goes_on_();
  // Wakes those who have left this call for the next one.
  board_.decide("gate/" + std::to_string(sequence() + 1), kTrouble);
  auto answers = roll_.call(index_, Answer::InACall);
  if (const auto said = roll_.said()) {
    throw *said;
  }
  return answers;
}

void Agreement::blame(
    const Call& call, const std::vector<Answer>& answers, const std::string& reason) {
  throw roll_.say(failure_of(call, ranks_, answers, reason));
}

CollectiveError failure_of(
    const Call& call,
    const std::vector<int>& ranks,
    const std::vector<Answer>& answers,
    const std::string& reason) {
  std::vector<int> silent;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (answers[i] == Answer::None) {
      silent.push_back(ranks[i]);
    }
  }
  return CollectiveError(
      "[" + call.group + "] " + call.text + ": " +
          (silent.empty() ? "failed, and all ranks are there"
                          : ranks_text(silent) + " ended or stopped") +
          ": " + reason + ". Nothing that was given has changed. Fix: look at the output of " +
          (silent.empty() ? "all ranks." : ranks_text(silent) + "."),
      silent);
}

void Agreement::raise(const std::string& text, std::vector<int> ranks) {
  throw roll_.say(CollectiveError(text, std::move(ranks)));
}

// What every rank would do, and which ranks would; waits for texts that are on their way.
Said Agreement::texts_of_all(const Call& call) {
  board_.write(
      key_at("text") + "/" + std::to_string(index_),
      call.complaint.empty() ? "." + call.group + "\n" + call.text : "!" + call.complaint);
  goes_on_();
  const auto until = Clock::now() + kPatience;
  Said said;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    auto text = board_.read(key_at("text") + "/" + std::to_string(i));
    while (!text && Clock::now() < until) {
      std::this_thread::sleep_for(Milliseconds(10));
      text = board_.read(key_at("text") + "/" + std::to_string(i));
    }
    said[text.value_or("!ended before it told what it was doing")].push_back(ranks_[i]);
  }
  return said;
}

void Agreement::explain_difference(const Call& call) {
  const auto said = texts_of_all(call);
  // Where most do the same, the others are odd; else all of them may be.
  const auto usual = usual_among(said);
  std::set<std::string> groups;
  int calls = 0;  // different ones; complaints alone are not for the order of calls
  for (const auto& [what, ranks] : said) {
    if (!is_complaint(what)) {
      groups.insert(group_in(what));
      ++calls;
    }
  }
  const auto would = [&](const std::string& what, const std::vector<int>& ranks) {
    const auto other = std::find_if(said.begin(), said.end(), [&](const auto& each) {
      return each.first != what && !is_complaint(each.first);
    });
    return ranks_text(ranks) +
        (is_complaint(what) ? ": " + what.substr(1)
                            : " would " +
                 in_short(text_in(what), other == said.end() ? "" : text_in(other->first)) +
                 (groups.size() > 1 ? " in \"" + group_in(what) + "\"" : ""));
  };
  std::string text = "[" + call.group + "] call " + std::to_string(sequence()) + ": ";
  std::vector<int> odd;
  std::string sep;
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
  raise(
      text + ". Nothing was sent." +
          (calls < 2
               ? ""
               : " Fix: every rank makes the same calls with the same tensors in the same order."),
      odd);
}

}  // namespace retape::dist::detail
