// World: all ranks, from C++ without Python.
//
//   auto world = retape::dist::World::from_environment();   // under torchrun, or any launcher that
//   sets Group all = world.all();                                // RANK, WORLD_SIZE, MASTER_ADDR,
//   MASTER_PORT
//
//   auto ends = retape::dist::run_ranks(4, [](World& world) { ... });   // forks four
//
// Gloo over the interface that leads to MASTER_ADDR: loopback stays on loopback, the store too.
// Where groups are made by torch.distributed, take those: Group(name, ranks,
// c10d::resolve_process_group(...)).
#pragma once

#include <retape/dist/group.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace retape::dist {

struct WorldOptions {
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
};

class RETAPE_API World {
 public:
  // Rank 0 serves the store unless a launcher does (TORCHELASTIC_USE_AGENT_STORE). UsageError: a
  // variable is missing or is not a number.
  static World from_environment(WorldOptions options = {});
  static World alone();

  int rank() const;
  int size() const;
  Group all() const;

  // Called by its members only; returns when all are connected. CollectiveError on all of them: one
  // did not come within the timeout (a minute at least for those that have not started yet), or did
  // not connect. The same name again is the same group; UsageError with other ranks.
  Group group(const std::string& name, std::vector<int> ranks) const;

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
RETAPE_API std::vector<RankEnd> run_ranks(
    int ranks, const std::function<void(World&)>& body, const RunOptions& options = {});

}  // namespace retape::dist
