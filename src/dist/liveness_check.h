// Roll call: who is still there, after a call has failed.
//
// A call that fails after it was agreed on fails for some ranks only: others have what they wanted
// of it and are on their way, or wait in it for bytes that will never come. So whoever fails calls
// the roll, and all that are left answer: those who fail too, and for those who are stuck or busy
// elsewhere a thread of their group that looks from time to time. Who does not answer is to blame;
// and who is elsewhere, where others have waited for him in vain.
//
// A roll that is called ends the group. To ask who is there does not.
#pragma once

#include "dist/fingerprint_store.h"

#include <retape/dist/group.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace retape::dist::detail {

// InACall: in one that was agreed on.
enum class Answer : char { None = ' ', InACall = 'c', Elsewhere = 'e' };

// How long answers of ranks that are there may take.
constexpr std::chrono::milliseconds kPatience{1000};

class RollCall {
 public:
  RollCall(Board board, size_t size) : board_(std::move(board)), size_(size) {}

  // Everybody's answer, after kPatience at the longest, or when somebody has said who is to blame.
  // Who has never joined does not answer.
  std::vector<Answer> call(size_t index, Answer own);
  // Who is there. `meanwhile` is called again and again: one that asks may be asked, too.
  std::vector<bool> ask(
      const std::function<void()>& meanwhile,
      std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max());
  bool has_joined(size_t index) const;

  // For those who answer, once they have joined: how often it was called or asked, and whether it
  // was called.
  void join(size_t index) const;
  int64_t times() const;
  bool called() const;
  void answer(size_t index, Answer answer) const;
  void be_there(size_t index, int64_t times) const;
  void leave(size_t index) const;  // for good: its process ends
  bool has_left(size_t index) const;
  bool somebody_left() const;

  // The first who knows says who is to blame, and that stands: for those who come too late to find
  // out, and so that all raise the same. Returns what stands.
  CollectiveError say(const CollectiveError& error) const;
  std::optional<CollectiveError> said() const;

 private:
  Board board_;
  size_t size_;
};

// An error as it is written on a board.
std::string written(const CollectiveError& error);
CollectiveError error_from(const std::string& written);

// "2 5 7" and back.
std::string numbers_text(const std::vector<int>& numbers);
std::vector<int> numbers_from(const std::string& text);

}  // namespace retape::dist::detail
