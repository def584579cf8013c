// What the ranks of the three pools have in common. Internal.
#pragma once

#include <retape/dist/edge.h>
#include <retape/dist/placement.h>

#include <three_pool/owned.h>
#include <three_pool/trainer.h>

#include <algorithm>

namespace three_pool {

struct Rank {
  const retape::dist::Case& run;
  retape::dist::Placement placement;
  const Config& config;
  PoolSizes sizes;
  Target target;

  Rank(
      const retape::dist::Case& run,
      const retape::dist::GroupFactory& groups,
      const Config& config);

  // `trainer.step(step, outcome)`, as often as the case says. A case of no steps has one, without
  // the optimizer.
  template <typename Trainer>
  retape::dist::Outcome all_steps(Trainer& trainer) const {
    retape::dist::Outcome outcome;
    for (int step = 0; step < std::max(run.steps, 1); ++step) {
      trainer.step(step, outcome);
      if (config.on_step) {
        config.on_step(step, outcome.losses);
      }
    }
    return outcome;
  }

  double weight(const char* term) const { return weight_of(run, term); }
  SiteRange sites_of_block(int block) const;
  Tensor batch(const std::string& pool, int step) const;  // this rank's rows of it

  retape::dist::Edge lower_edge(const std::string& to) const;  // from ci

  // Tensors that the member `from` of a group has, on all members; in the wire dtype, as one
  // message.
  void broadcast(
      const std::string& name,
      const retape::dist::Group& group,
      int from,
      std::vector<Tensor> tensors) const;
};

// Indices in the groups link_name(block) and leaders_name(block).
inline constexpr int kBlockLeader = 0, kPpgdLeader = 1;

// All steps of a rank of such a pool.
retape::dist::Outcome run_ci(const Rank& rank);
retape::dist::Outcome run_block(const Rank& rank, int block);
retape::dist::Outcome run_ppgd(const Rank& rank);

}  // namespace three_pool
