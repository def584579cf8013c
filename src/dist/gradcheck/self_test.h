// SelfTest: breaks one contribution at a time, and looks whether the comparison notices.
#pragma once

#include "dist/gradcheck/plan.h"
#include "dist/gradcheck/runner.h"

#include <functional>

namespace retape::dist::detail {

// One mutation and the runs in which its contribution was seen.
struct Trial {
  GradMutant mutant;
  double factor = 1;
  std::vector<size_t> runs;
};

// All that can be broken at `at`. OtherCount: with the size of every other pool. Those that change
// nothing (an average over one) are counted in `equivalent` and left out.
std::vector<Trial> trials_at(
    const Contribution& at,
    const std::vector<size_t>& runs,
    const Topology& topology,
    int& equivalent);

// It sums nothing but tensors that are declared dead: whatever breaks it, zeros stay zeros.
bool sums_the_dead(const Contribution& at, const std::vector<std::string>& may_be_dead);

// What a broken run shows: alpha of the tensor that is closest to the prediction, of those that
// differ.
void note_fit(GradMutant& mutant, const std::vector<GradRow>& rows);

// Whether ranks that made `ran` of `planned` differ from the reference; the same on all ranks.
// `rows`: of the first one. `all`: its gradients are the scale.
bool differs(
    Runner& runner,
    const Planned& planned,
    const Planned& all,
    const Ran& ran,
    std::vector<GradRow>& rows);

class SelfTest {
 public:
  struct Watcher {
    std::function<void(int)> expect;                  // so many runs more
    std::function<void(const std::string&)> advance;  // one begins
  };

  SelfTest(
      Runner& runner,
      const NamedTopology& topology,
      const GradCheckOptions& options,
      Watcher watcher);

  // Fills in what a report says of mutants. By every rank; the report of the first is complete.
  // False: it ended early, and groups may be broken.
  bool run(GradReport& report);

 private:
  bool list(GradReport& report);
  void note_skipped(const std::vector<std::string>& names, GradReport& report) const;
  bool try_one(Trial& trial);
  bool works_as_before(size_t run);
  bool differs(size_t run, const Ran& ran, std::vector<GradRow>& rows);

  Runner& runner_;
  const NamedTopology& topology_;
  const std::vector<std::string>& may_be_dead_;
  Watcher watcher_;
  std::vector<Planned> runs_;  // terms alone first: there alpha is sharpest
  size_t all_ = 0;             // the one whose gradients are the scale
  std::vector<Trial> trials_;
};

}  // namespace retape::dist::detail
