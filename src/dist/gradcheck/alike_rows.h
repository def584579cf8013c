// Alike rows: could a mean of each rank's mean have been seen?
//
// Where all rows of a batch are alike it is the mean over all rows, whatever the shards. So in an
// uneven topology the parts that ranks add are weighted by rows, both ways: as a mean of means
// weighs the parts of a right step, and as a right step weighs those of a mean of means. Where no
// part goes through Retape, the step is run with fewer rows. A term whose gradients are the same is
// noted.
#pragma once

#include "dist/gradcheck/self_test.h"

namespace retape::dist::detail {

// One with a pool whose shards are uneven and not empty; null if there is none.
const NamedTopology* uneven_one(const std::vector<NamedTopology>& topologies);

// By every rank; the report of the first is complete.
void note_alike_rows(
    Runner& runner,
    const NamedTopology& uneven,
    const GradCheckOptions& options,
    const SelfTest::Watcher& watcher,
    GradReport& report);

}  // namespace retape::dist::detail
