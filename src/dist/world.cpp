#include <retape/dist/world.h>

#include "dist/gloo.h"
#include "dist/group_impl.h"
#include "dist/store.h"
#include "dist/world_impl.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <numeric>

namespace retape::dist {

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

// Written by a rank that has come into the world: it may be waited for like any other.
std::string started_key(int rank) {
  return "started/" + std::to_string(rank);
}

}  // namespace

World World::from_environment(WorldOptions options) {
  auto impl = std::make_shared<Impl>();
  impl->size = number("WORLD_SIZE", kMostRanks);
  impl->rank = number("RANK", impl->size - 1);
  const auto host = variable("MASTER_ADDR");
  impl->address = detail::own_address(host);
  const auto port = static_cast<uint16_t>(number("MASTER_PORT", 65535));
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  const bool launcher = agent != nullptr && std::string(agent) == "True";
  impl->options.timeout = options.timeout;
  c10::intrusive_ptr<c10d::Store> store;
  if (!launcher) {
    impl->options.store_host = 0;
  }
  store = !launcher && impl->rank == 0
      ? detail::serve_store(host, detail::listen_at(host, port), options.timeout)
      : detail::reach_store(host, port, options.timeout);
  // A launcher that starts ranks anew keeps its store: the keys of an earlier try must not be
  // found. Nor those of another World of this process: ranks make them in the same order.
  static std::atomic<int> worlds{0};
  const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  impl->store = c10::make_intrusive<c10d::PrefixStore>(
      std::string("retape.world.") + (attempt ? attempt : "0") + "." + std::to_string(worlds++),
      std::move(store));
  detail::as_board(impl->store).write(started_key(impl->rank), "");
  return World(std::move(impl));
}

World World::alone() {
  return World(std::make_shared<Impl>());
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

Group World::Impl::make_group(const std::string& name, const std::vector<int>& ranks) const {
  if (ranks.size() == 1) {
    return Group::alone(name, rank);
  }
  if (!store) {
    throw UsageError("[World] group \"" + name + "\": this process is alone.");
  }
  const auto index = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  const auto size = static_cast<int>(ranks.size());
  return detail::GroupImpl::making(
      name,
      ranks,
      index,
      options,
      c10::make_intrusive<c10d::PrefixStore>(name, store),
      store,
      [ranks, timeout = options.timeout](const detail::Board& words) {
        const bool all_started = std::all_of(
            ranks.begin(), ranks.end(), [&](int each) { return words.has(started_key(each)); });
        return all_started ? timeout : std::max(timeout, detail::kToConnect);
      },
      [address = address, index, size, timeout = options.timeout](const detail::StorePtr& own) {
        return detail::make_gloo(own, address, index, size, timeout);
      });
}

}  // namespace retape::dist
