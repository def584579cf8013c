// Whereabouts: what a rank does in other groups while one of its groups waits for it.
//
// A process leaves word where all ranks can find it, whether it has come to a group already or not:
// in which groups it waits, or that a call has failed. Whoever misses it in a group follows the
// word, as far as it leads, and blames the rank at its end: not one that waits itself.
#pragma once

#include "dist/liveness_check.h"

#include <retape/dist/group.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace retape::dist::detail {

// Where a rank waits.
struct Waiting {
  std::string group;   // its name
  std::string prefix;  // of its board
  uint64_t sequence;   // of the call
  std::vector<int> ranks;
};

// Words. Several make one, joined.
std::string word_of(const Waiting& waiting);
std::string word_of(const CollectiveError& error);
std::string joined(const std::vector<std::string>& words);

// The word that `rank` has left on `board`; "": none.
std::string word_on(const Board& board, int rank);
void leave_word(const Board& board, int rank, const std::string& word);

struct Blame {
  std::vector<int> ranks = {};  // nobody: it leads nowhere
  std::string why = {};         // "waits in "x" for rank 2"
  bool circle = false;          // it leads to where somebody waits for it
};

// Who follows words: where they are, and what is called again and again while that takes time.
// Several words may lead to one board, which is asked once; `until` is for the one place on the way
// where somebody does not answer.
struct Trail {
  const Board& words;
  const std::function<void()>& goes_on;
  std::chrono::steady_clock::time_point until;
  std::map<std::string, std::vector<bool>> there = {};  // by the prefix of a board
};

// `may_wait`: false for a rank that has ended, which waits for nobody. `visited`: prefixes of the
// boards on the way.
Blame follow(Trail& trail, const std::string& word, bool may_wait, std::set<std::string> visited);

// "rank 2", "ranks 0, 1 and 4".
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace retape::dist::detail
