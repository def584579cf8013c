// GradCheck: do ranks together compute what one process would have computed?
//
//   GradCheckOptions options;
//   options.terms = {{"recon", 1.0}, {"penalty", 0.1}};
//   options.topologies = {
//       {"1", Topology(24, {{"ranks", {0}}})},
//       {"4", Topology(24, {{"ranks", {0, 1, 2, 3}}})}};
//   const auto report = GradCheck(world.all(), reference, distributed, options).run();  // on every
//   rank if (world.rank() == 0) std::cout << report.text(); return report.exit_code();
//
// `reference` is one process with the whole batch, called on the first rank; `distributed` is
// called on every rank of a topology, and returns what that rank holds. Both begin anew each time
// they are called: the same case, the same outcome. What is compared, in every topology and dtype:
//
//   each term alone, and all    against the term's own largest gradient: in the sum of all terms a
//   small
//                               one hides. One that is zero where it was declared live, or in the
//                               sum is smaller than what the comparison allows, is vacuous:
//                               reported, not passed
//   replicas                    the same bits on every rank that holds a tensor; none on one of
//   them is not
//                               the same, unless all have zeros. A rank that leaves a name out
//                               differs where ranks are `replicated`; elsewhere a note names it
//   norms, losses               as clipping computed them; as they are logged
//   parameters                  how far `steps` of the optimizer have moved them. Where rounding
//   hides even
//                               that a parameter stood still, it is vacuous
//   float64 first               to 1e-12, with a full-precision wire; then `dtypes`, to what their
//                               rounding allows
//   ragged shards               even ones hide a mean of means. A variant is added in which every
//   pool is
//                               ragged that is not in any topology; `microbatches` are ragged
//                               always, and that no rank asks for them is noted
//   empty shards                ranks that run out of batches continue with 0 rows. A variant is
//   added in
//                               which one rank of every pool has none
//
// A factor alpha that fits, with little left over, is a wrong scale, and group sizes that make it
// are guessed; at equal sizes several do, so some topology must have all sizes different. Rows must
// go from many ranks to few and from few to many, between pools without a common rank, and some
// topology must have one rank in every pool; where one pool has all ranks, that there is none is a
// note. None of these is added, for a step needs groups of its own for each: without them the
// verdict is vacuous. What is left over (residual) is no scale: a function of a local sum, other
// random numbers (row_random.h), a mean of means.
//
// Last, a self-test: every place where a rank's number enters a sum (contribution.h) is broken in
// every way, and each must come out different. A mutant that survives makes the verdict vacuous, as
// does a step that sums nothing through retape::dist, and one that a mutant has raised in and that
// then no longer comes out as before (groups are broken). One that comes out by another ratio than
// predicted is named, and no more: a gradient may have other parts, too. With the self-test or
// without, a note names terms whose rows are so alike that a mean of means would not be seen: the
// step runs with weighted parts for that, or with fewer rows.
//
// Vacuous is not a failure of the step; it says that nothing was proved. It cannot see what both
// functions get wrong alike, races, or configurations that were not given.
//
// Failure: an exception of either function on any rank raises on all: itself where it was thrown,
// elsewhere CollectiveError with its text. Ranks that wait for that one in a collective of theirs
// come back when it times out: give `everyone` a longer timeout than the groups that the step uses.
// What is no std::exception (an interrupt) passes through, and breaks all groups of this process:
// ranks that wait in one raise at once. Threads: called from one. It takes the process's Watch.
#pragma once

#include <retape/dist/case.h>
#include <retape/dist/gradcheck_report.h>
#include <retape/dist/group.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace retape::dist {

struct Term {
  std::string name;
  double coefficient = 1;
  // Tensors whose gradient it must reach: names, "*" at the end. Empty: whatever it does reach.
  std::vector<std::string> live = {};
  bool random = false;  // it draws random numbers
};

struct NamedTopology {
  std::string name;
  Topology topology;
};

struct GradCheckOptions {
  std::vector<Term> terms;
  std::vector<NamedTopology> topologies;
  std::vector<at::ScalarType> dtypes = {at::kFloat};  // in production; float64 is always first
  std::optional<at::ScalarType> wire;  // in production: `dtypes` are run with it, too
  int steps = 0;                       // of the optimizer, with all terms on; 0: none
  int microbatches = 1;                // see Case::cut
  // Every rank of a topology holds every tensor, as with data parallelism: a gradient, parameter or
  // norm that a rank leaves out is different. Without it a rank may hold some, and what is left out
  // is a note.
  bool replicated = false;
  bool ragged = true;                          // add a ragged variant of pools that are not
  bool empty = true;                           // beside it, one with a rank without rows
  bool mutations = true;                       // the self-test
  std::map<at::ScalarType, double> tolerance;  // by dtype of computation, in place of the derived
  std::vector<std::string> may_be_dead;        // tensors without gradient: names, "*" at the end
  uint64_t seed = 0;
};

// What rounding comes to: 1e-12 in float64, 100 eps in float32, 8 eps in a narrower dtype; 8 eps of
// a narrower wire on top. How that is derived, and from it what parameters may be off:
// tolerance.cpp.
RETAPE_API double derived_tolerance(
    at::ScalarType dtype, std::optional<at::ScalarType> wire = std::nullopt);

class RETAPE_API GradCheck {
 public:
  using Step = std::function<Outcome(const Case&)>;
  using Progress = std::function<void(int done, int total, const std::string& what)>;
  using Raised = std::function<void(const std::string& text)>;

  // `everyone` moves CPU tensors (Gloo). UsageError: no term or topology, names twice, fewer ranks
  // than a topology has.
  GradCheck(Group everyone, Step reference, Step distributed, GradCheckOptions options);

  // By every rank of `everyone`; those that a topology has no use for wait. `progress` is called
  // before each run; the self-test adds to the total when it begins. `raised` is called where a
  // step has raised, at once: the others may wait for this rank until they time out.
  GradReport run(const Progress& progress = nullptr, const Raised& raised = nullptr) const;

 private:
  Group everyone_;
  Step reference_;
  Step distributed_;
  GradCheckOptions options_;
};

}  // namespace retape::dist
