#include "dist/liveness_monitor.h"

namespace retape::dist::detail {

std::optional<CollectiveError> Sentry::look(Answer answer) {
  const auto times = roll_.times();
  if (times > answered_) {
    answered_ = times;
    called_ = roll_.called();
    roll_.be_there(index_, times);
    if (called_) {
      roll_.answer(index_, answer);
    }
  }
  return called_ ? roll_.said() : std::nullopt;
}

}  // namespace retape::dist::detail
