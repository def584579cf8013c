#include "dist/whereabouts.h"

#include <algorithm>
#include <sstream>

namespace retape::dist::detail {

namespace {

constexpr char kWaits = 'w';
constexpr char kFailed = 'f';

constexpr char kBetween = '\x1e';

std::string key_of(int rank) {
  return "word/" + std::to_string(rank);
}

Waiting waiting_from(const std::string& text) {
  std::istringstream lines(text);
  std::string sequence, ranks;
  Waiting waiting;
  std::getline(lines, waiting.prefix);
  std::getline(lines, sequence);
  std::getline(lines, ranks);
  std::getline(lines, waiting.group, '\0');
  waiting.sequence = std::stoull(sequence);
  waiting.ranks = numbers_from(ranks);
  return waiting;
}

void append(std::vector<int>& ranks, const std::vector<int>& more) {
  for (const int rank : more) {
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) {
      ranks.push_back(rank);
    }
  }
}

// For whom those who wait there wait.
std::vector<int> missing_from(
    const Waiting& waiting, Trail& trail, const std::set<std::string>& visited) {
  const Board board{trail.words.store, waiting.prefix};
  RollCall roll(board, waiting.ranks.size());
  if (const auto said = roll.said()) {
    return said->ranks();
  }
  auto known = trail.there.find(waiting.prefix);
  if (known == trail.there.end()) {
    known = trail.there.emplace(waiting.prefix, roll.ask(trail.goes_on, trail.until)).first;
  }
  const auto& there = known->second;
  const bool all_there = std::find(there.begin(), there.end(), false) == there.end();
  std::vector<int> missing;
  for (size_t i = 0; i < there.size(); ++i) {
    // One that has ended explains those that are there and have not come.
    const bool late = all_there && board.number("mark/" + std::to_string(i)) < waiting.sequence;
    if (there[i] && !late) {
      continue;
    }
    const auto blame = follow(
        trail, word_on(trail.words, waiting.ranks[i]), there[i] || !roll.has_joined(i), visited);
    if (!blame.circle) {  // else it waits for the one whose word led here
      append(missing, blame.ranks.empty() ? std::vector<int>{waiting.ranks[i]} : blame.ranks);
    }
  }
  return missing;
}

}  // namespace

std::string word_of(const Waiting& waiting) {
  return kWaits + waiting.prefix + "\n" + std::to_string(waiting.sequence) + "\n" +
      numbers_text(waiting.ranks) + "\n" + waiting.group;
}

std::string word_of(const CollectiveError& error) {
  return kFailed + written(error);
}

std::string joined(const std::vector<std::string>& words) {
  std::string all;
  for (const auto& word : words) {
    all += (all.empty() ? "" : std::string(1, kBetween)) + word;
  }
  return all;
}

std::string word_on(const Board& board, int rank) {
  return board.read(key_of(rank)).value_or("");
}

void leave_word(const Board& board, int rank, const std::string& word) {
  board.write(key_of(rank), word);
}

Blame follow(Trail& trail, const std::string& word, bool may_wait, std::set<std::string> visited) {
  Blame blame;
  bool circle = false, end = false;
  std::istringstream words(word);
  for (std::string each; std::getline(words, each, kBetween);) {
    if (each.at(0) == kFailed) {
      const auto error = error_from(each.substr(1));
      return {error.ranks(), std::string("has failed elsewhere: ") + error.what()};
    }
    if (!may_wait) {
      continue;
    }
    const auto waiting = waiting_from(each.substr(1));
    if (!visited.insert(waiting.prefix).second) {
      circle = true;
      continue;
    }
    end = true;
    const auto ranks = missing_from(waiting, trail, visited);
    append(blame.ranks, ranks);
    blame.why += std::string(blame.why.empty() ? "" : " and ") + "waits in \"" + waiting.group +
        "\"" + (ranks.empty() ? "" : " for " + ranks_text(ranks));
  }
  blame.circle = circle && !end;
  return blame;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace retape::dist::detail
