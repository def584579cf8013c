// Ranks from C++ without Python, on this machine: for tests and examples. Copy it if it fits.
//
//   auto ends = ranks::run_ranks(4, [](ranks::World& world) {        // forks four
//     world.all().sum("tensor", tensor);
//   });
//
//   auto world = ranks::World::from_environment();    // under torchrun, or any launcher that sets
//                                                     // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//
// Gloo uses the interface that leads to MASTER_ADDR: loopback stays on loopback, and so does the
// store. The library itself takes any c10d::ProcessGroup: retape::dist::Group(name, ranks, ...).
#pragma once

#include <retape/dist/group.h>
#include <retape/dist/placement.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace ranks {

struct WorldOptions {
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
};

class World {
 public:
  // Rank 0 serves the store unless a launcher does (TORCHELASTIC_USE_AGENT_STORE). UsageError: a
  // variable is missing or is not a number.
  static World from_environment(WorldOptions options = {});

  int rank() const;
  int size() const;
  retape::dist::Group all() const;

  // Called by its members only; returns when all are connected. CollectiveError on all of them: one
  // did not come within the timeout (a minute at least for those that have not started yet), or did
  // not connect. The same name again is the same group; UsageError with other ranks.
  retape::dist::Group group(const std::string& name, std::vector<int> ranks) const;

  // For Placement.
  operator retape::dist::GroupFactory() const;

 private:
  struct Impl;
  explicit World(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

// How a rank ended.
struct RankEnd {
  int exit_code = 0;  // -1: it was ended by `signal`
  int signal = 0;
  std::string error;  // what() of what its function threw; exit_code is then 1
  std::chrono::steady_clock::time_point at;  // when it had ended
};

struct RunOptions {
  WorldOptions world;
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};  // then what is left is killed
  // How long the others may go on when one has failed; then they are killed.
  std::chrono::milliseconds patience{std::chrono::minutes(30)};
  // Called in this process when all have started, with their process ids.
  std::function<void(const std::vector<int>& pids)> started;
};

// Forks `ranks` processes, runs `body` in each, and waits for them. This process hosts the store,
// on loopback. UsageError if it has other threads: what they hold would be locked in the children
// forever.
std::vector<RankEnd> run_ranks(
    int ranks, const std::function<void(World&)>& body, const RunOptions& options = {});

}  // namespace ranks
