#include <retape/dist/world.h>

#include "dist/gloo.h"
#include "dist/store.h"
#include "dist/world_impl.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace retape::dist {

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    throw UsageError(
        "[World] " + std::string(name) + " is not set. Fix: start ranks by torchrun, or by run_ranks, or set RANK, "
        "WORLD_SIZE, MASTER_ADDR and MASTER_PORT.");
  }
  return value;
}

int number(const char* name, int highest) {
  const auto text = variable(name);
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (*end != '\0' || value < 0 || value > highest) {
    throw UsageError("[World] " + std::string(name) + " is \"" + text + "\", not a number from 0 to " +
                     std::to_string(highest) + ".");
  }
  return static_cast<int>(value);
}

constexpr int kMostRanks = 1 << 20;

}  // namespace

World World::from_environment(WorldOptions options) {
  auto impl = std::make_shared<Impl>();
  impl->size = number("WORLD_SIZE", kMostRanks);
  impl->rank = number("RANK", impl->size - 1);
  impl->host = variable("MASTER_ADDR");
  const auto port = static_cast<uint16_t>(number("MASTER_PORT", 65535));
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  const bool launcher = agent != nullptr && std::string(agent) == "True";
  impl->options.timeout = options.timeout;
  c10::intrusive_ptr<c10d::Store> store;
  if (!launcher) {
    impl->options.store_host = 0;
  }
  store = !launcher && impl->rank == 0
      ? detail::serve_store(impl->host, detail::listen_at(impl->host, port), options.timeout)
      : detail::reach_store(impl->host, port, options.timeout);
  // A launcher that starts ranks anew keeps its store: the keys of an earlier try must not be found.
  const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  impl->store = c10::make_intrusive<c10d::PrefixStore>(
      std::string("retape.world.") + (attempt ? attempt : "0"), std::move(store));
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
  const std::lock_guard guard(impl_->mutex);
  const auto it = impl_->groups.find(name);
  if (it != impl_->groups.end()) {
    if (it->second.ranks() != ranks) {
      throw UsageError("[World] there is a group \"" + name + "\" already, of other ranks.");
    }
    return it->second;
  }
  return impl_->groups.emplace(name, impl_->make_group(name, ranks)).first->second;
}

Group World::Impl::make_group(const std::string& name, const std::vector<int>& ranks) const {
  const auto it = std::find(ranks.begin(), ranks.end(), rank);
  if (it == ranks.end()) {
    throw UsageError(
        "[World] rank " + std::to_string(rank) + " is not in group \"" + name + "\". Fix: only members make it.");
  }
  if (ranks.size() == 1) {
    return Group::alone(name, rank);
  }
  // A connection of its own: connecting waits for the others, and other groups must not wait for that.
  const auto own = c10::make_intrusive<c10d::PrefixStore>(name, store->clone());
  const auto index = static_cast<int>(it - ranks.begin());
  return Group(
      name,
      ranks,
      detail::make_gloo(own, host, index, static_cast<int>(ranks.size()), options.timeout),
      options);
}

}  // namespace retape::dist
