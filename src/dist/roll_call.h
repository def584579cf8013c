// Roll call: who is still there, after a call has failed.
//
// A call that fails after it was agreed on fails for some ranks only: others have what they wanted of it
// and are on their way, or wait in it for bytes that will never come. So whoever fails calls the roll, and
// all that are left answer: those who fail too, and for those who are stuck or busy elsewhere a thread of
// their group that looks from time to time. Who does not answer is to blame; and who is elsewhere, where
// others have waited for him in vain.
#pragma once

#include <retape/dist/group.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <optional>
#include <string>
#include <vector>

namespace retape::dist::detail {

enum class Answer : char { None = ' ', InACall = 'c', Elsewhere = 'e' };

class RollCall {
 public:
  RollCall(c10::intrusive_ptr<c10d::Store> store, std::string prefix, int size, int index);

  // Whether any rank has called it.
  bool called();
  void answer(Answer answer);
  // Calls, answers, and returns everybody's answer after at most a second.
  std::vector<Answer> call(Answer answer);

  // The first who knows says who is to blame; for those who come too late to find out.
  void say(const CollectiveError& error);
  std::optional<CollectiveError> said();

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::string prefix_;
  int size_;
  int index_;
};

}  // namespace retape::dist::detail
