// The node behind a sliced call: holds what the function was given and a plan, nothing else.
#pragma once

#include "backward/rows/plan.h"
#include "tape/region.h"
#include "tape/tape.h"

#include <memory>

namespace retape::detail {

struct RowsCounts {
  std::mutex mutex;
  uint64_t sliced = 0, whole = 0, ops_replayed = 0;
  std::string reason;
};

struct SlicedCall {
  Plan plan;
  int64_t slices;
  std::shared_ptr<RowsCounts> counts;
  std::shared_ptr<Region> region;
  c10::intrusive_ptr<Tape> tape;  // whose lock guards the region's counters
};

// `given`: in the plan's order. `outputs` get the node for their history.
void set_sliced_history(
    SlicedCall call, const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& outputs);

}  // namespace retape::detail
