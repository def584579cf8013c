// What the faults of replay (tape/fault.h) do, as an observer of a tape. Those of a second run are
// where it runs (frontends/rerun), and four that leave something out are where that is done.
#pragma once

#include "tape/fault.h"
#include "tape/tape_observer.h"

#include <memory>

namespace retape::detail {

#ifdef RETAPE_FAULTS

// Of a tape that begins while a fault is on. Before the checker: it finds what this has broken.
std::shared_ptr<TapeObserver> faults_of_new_tape();
void forget_what_faults_put_aside();

#else

inline std::shared_ptr<TapeObserver> faults_of_new_tape() {
  return nullptr;
}

#endif

}  // namespace retape::detail
