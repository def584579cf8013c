#include "tape/fault.h"

namespace retape::detail {

#ifdef RETAPE_FAULTS

std::atomic<Fault> fault_that_is_on{Fault::None};
std::atomic<uint64_t> hits_of_fault{0};

#endif

}  // namespace retape::detail
