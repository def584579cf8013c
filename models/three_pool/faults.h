// Faults that trainers of this kind have had, one number each, and by what they multiply a
// gradient.
//
//   for (const auto& fault : faults(sizes)) {
//     const Watch watch(at(fault, topology, rank), fault.mutation, fault.factor);
//     const auto wrong = distributed(run, world);     // of fault.term alone: the ratios are exact
//   }
//
// The last one shows only where n_ppgd and n_per_block differ.
#pragma once

#include <retape/dist/contribution.h>

#include <three_pool/layout.h>

#include <optional>

namespace three_pool {

struct Fault {
  std::string name;

  // Where, and what is done there. `pool` "block": in every block.
  retape::dist::Place place;
  std::string contribution;
  std::string pool;
  retape::dist::Mutation mutation;
  double factor;

  std::string term;  // the one in which it is to be seen
  // Predicted ratio of gradients of the term; none: it is no factor.
  std::optional<double> theta;
  std::optional<double> components;  // V and U
};

inline std::vector<Fault> faults(PoolSizes n) {
  using enum retape::dist::Place;
  using enum retape::dist::Mutation;
  const std::optional<double> no_factor;
  const double ci = n.ci, per_block = n.per_block, ppgd = n.ppgd;
  return {
      {"CI gradients averaged", Sum, "*", "ci", Average, 1, "stoch", 1 / ci, 1},
      {"block gradients averaged", Sum, "*", "block", Average, 1, "stoch", 1, 1 / per_block},
      {"faith on all ranks", Once, "faith", "block", OnAllRanks, 1, "faith", 1, per_block},
      {"ppgd V/U on all ranks", Once, "ppgd V/U", "block", OnAllRanks, 1, "ppgd", 1, per_block},
      {"all_reduce with gradient", Residual, "imp sums", "ci", TimesGroup, 1, "imp", ci, 1},
      {"log2 of the local sum", Residual, "imp sums", "ci", LocalValue, 1, "imp", no_factor, 1},
      {"stoch by local count",
       Count,
       "stoch count",
       "block",
       LocalCount,
       1,
       "stoch",
       per_block,
       per_block},
      {"ppgd by local count", Count, "ppgd count", "ppgd", LocalCount, 1, "ppgd", ppgd, ppgd},
      {"ppgd gradients times n_ci", Gradient, "ppgd/lower", "ci", TimesGroup, 1, "ppgd", ci, 1},
      {"n_ppgd for n_per_block",
       Count,
       "stoch count",
       "block",
       OtherCount,
       ppgd,
       "stoch",
       per_block / ppgd,
       per_block / ppgd},
  };
}

// What the trainer once was: averages in place of sums, and factors of pool sizes that undo them,
// or not.
struct State {
  std::string name;
  std::vector<Fault> faults;
  struct Ratios {
    double theta, components;
  };
  Ratios stoch, ppgd;  // of those terms alone; faith and imp are right
};

inline std::vector<State> states(PoolSizes n) {
  using namespace retape::dist;
  const auto all = faults(n);
  const auto add = [&](std::vector<Fault> to, const std::string& name) {
    for (const auto& fault : all) {
      if (fault.name == name) {
        to.push_back(fault);
      }
    }
    return to;
  };
  std::vector<Fault> averages;
  for (const auto* name :
       {"CI gradients averaged",
        "block gradients averaged",
        "faith on all ranks",
        "ppgd V/U on all ranks",
        "all_reduce with gradient"}) {
    averages = add(averages, name);
  }
  const double ci = n.ci, per_block = n.per_block;
  auto divided = averages;
  divided.push_back(
      {"n_per_block / n_ci",
       Place::Count,
       "stoch count",
       "block",
       Mutation::OtherCount,
       per_block / ci,
       "stoch",
       {},
       {}});
  return {
      {"local counts (6925b88)",
       add(averages, "stoch by local count"),
       {per_block / ci, 1},
       {1 / ci, 1}},
      {"counts by n_per_block / n_ci", divided, {1, ci / per_block}, {1 / ci, 1}},
      {"and ppgd times n_ci (#545)",
       add(divided, "ppgd gradients times n_ci"),
       {1, ci / per_block},
       {1, 1}},
      {"sums (#546)", {}, {1, 1}, {1, 1}},
  };
}

// For a Watch on this rank: each block has a group of its own.
inline retape::dist::Contribution at(
    const Fault& fault, const retape::dist::Topology& topology, int rank) {
  auto pool = topology.pool(fault.pool == "block" ? block_name(0) : fault.pool);
  for (const auto& other : topology.pools()) {
    if (fault.pool == "block" && other.name.starts_with("block") && other.index_of(rank) >= 0) {
      pool = other;
    }
  }
  // An edge calls its owners by the name of the pool.
  const bool of_edge = fault.place == retape::dist::Place::Gradient;
  return {
      fault.place,
      fault.contribution,
      of_edge ? pool.name : group_name(pool.name, pool.ranks),
      pool.size()};
}

}  // namespace three_pool
