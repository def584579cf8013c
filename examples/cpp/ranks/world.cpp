#include "launch.h"

#include "gloo.h"
#include "store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

namespace ranks {

using retape::UsageError;
using retape::dist::Group;
using retape::dist::GroupOptions;
using std::chrono::milliseconds;

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    throw UsageError(
        "[World] " + std::string(name) +
        " is not set. Fix: start ranks by torchrun, or by run_ranks, or set RANK, "
        "WORLD_SIZE, MASTER_ADDR and MASTER_PORT.");
  }
  return value;
}

int number(const char* name, int highest) {
  const auto text = variable(name);
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (*end != '\0' || value < 0 || value > highest) {
    throw UsageError(
        "[World] " + std::string(name) + " is \"" + text + "\", not a number from 0 to " +
        std::to_string(highest) + ".");
  }
  return static_cast<int>(value);
}

constexpr int kMostRanks = 1 << 20;

// After Gloo's own timeout, how long a rank waits for others that have not connected either.
constexpr milliseconds kToCompare{200};

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// "" or why it could not. Where a peer is stopped Gloo takes longer than its timeout, and is left
// behind.
std::string connect(
    const ProcessGroupPtr& process_group,
    const StorePtr& store,
    const std::string& address,
    milliseconds timeout) {
  auto task = std::packaged_task<void()>(
      [=] { connect_gloo(*process_group, store, address, timeout); });
  auto done = task.get_future();
  std::thread(std::move(task)).detach();
  if (done.wait_for(timeout) != std::future_status::ready) {
    return "cannot connect in time";
  }
  try {
    done.get();
    return "";
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return "cannot connect: " + text.substr(0, text.find('\n'));
  }
}

}  // namespace

struct World::Impl {
  int rank = 0;
  int size = 1;
  std::string address;                    // where Gloo listens
  c10::intrusive_ptr<c10d::Store> store;  // null: there is one rank
  GroupOptions options;

  // A group that is being made, or is made, or could not be.
  struct Made {
    std::vector<int> ranks;
    std::shared_future<Group> group;
  };
  std::mutex mutex;
  std::map<std::string, Made> groups;
  std::atomic<bool> all_started{false};

  milliseconds to_come();
  Group make_group(const std::string& name, const std::vector<int>& ranks);
};

World World::from_environment(WorldOptions options) {
  auto impl = std::make_shared<Impl>();
  impl->size = number("WORLD_SIZE", kMostRanks);
  impl->rank = number("RANK", impl->size - 1);
  const auto host = variable("MASTER_ADDR");
  impl->address = own_address(host);
  const auto port = static_cast<uint16_t>(number("MASTER_PORT", 65535));
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  const bool launcher = agent != nullptr && std::string(agent) == "True";
  impl->options.timeout = options.timeout;
  if (!launcher) {
    impl->options.store_host = 0;
  }
  auto store = !launcher && impl->rank == 0
      ? serve_store(host, listen_at(host, port), options.timeout)
      : reach_store(host, port, options.timeout);
  // A launcher that starts ranks anew keeps its store: the keys of an earlier try must not be
  // found. Nor those of another World of this process: ranks make them in the same order.
  static std::atomic<int> worlds{0};
  const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  impl->store = c10::make_intrusive<c10d::PrefixStore>(
      std::string("retape.world.") + (attempt ? attempt : "0") + "." + std::to_string(worlds++),
      std::move(store));
  impl->store->add("started", 1);
  return World(std::move(impl));
}

int World::rank() const {
  return impl_->rank;
}

int World::size() const {
  return impl_->size;
}

Group World::all() const {
  std::vector<int> ranks(impl_->size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return group("world", std::move(ranks));
}

World::operator retape::dist::GroupFactory() const {
  return {rank(), [world = *this](const std::string& name, const std::vector<int>& ranks) {
            return world.group(name, ranks);
          }};
}

Group World::group(const std::string& name, std::vector<int> ranks) const {
  if (std::find(ranks.begin(), ranks.end(), impl_->rank) == ranks.end()) {
    throw UsageError(
        "[World] rank " + std::to_string(impl_->rank) + " is not in group \"" + name +
        "\". Fix: only members make it.");
  }
  // Not made under the lock: other groups must not wait for the members of this one.
  std::unique_lock lock(impl_->mutex);
  std::packaged_task<Group()> make([&] { return impl_->make_group(name, ranks); });
  const auto known = impl_->groups.find(name);
  const bool is_new = known == impl_->groups.end();
  const auto made = is_new ? Impl::Made{ranks, make.get_future().share()} : known->second;
  if (is_new) {
    impl_->groups.emplace(name, made);
  }
  lock.unlock();
  if (made.ranks != ranks) {
    throw UsageError("[World] there is a group \"" + name + "\" already, of other ranks.");
  }
  if (is_new) {
    make();
  }
  return made.group.get();
}

// A rank that has started may be waited for like any other.
milliseconds World::Impl::to_come() {
  all_started = all_started || store->add("started", 0) == size;
  return all_started ? options.timeout : std::max(options.timeout, kToConnect);
}

// Ranks agree through the store before there is a transport, by a process group that has none yet.
Group World::Impl::make_group(const std::string& name, const std::vector<int>& ranks) {
  if (ranks.size() == 1) {
    return Group::alone(name, rank);
  }
  const auto index = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  const auto count = static_cast<int>(ranks.size());
  const auto own = c10::make_intrusive<c10d::PrefixStore>(name, store);
  const auto process_group = c10::make_intrusive<c10d::ProcessGroup>(own, index, count);
  const Group group(name, ranks, process_group, options);
  const auto within = [&](milliseconds timeout) {
    auto same = options;
    same.timeout = timeout;
    return Group(name, ranks, process_group, same);
  };
  within(to_come()).barrier("make group \"" + name + "\"");
  const auto complaint = connect(process_group, own, address, options.timeout);
  // Those who have connected go on when all have: none is left in a group that others gave up.
  within(complaint.empty() ? options.timeout + kToCompare : kToCompare)
      .agree("connect group \"" + name + "\"", "", complaint);
  return group;
}

}  // namespace ranks
