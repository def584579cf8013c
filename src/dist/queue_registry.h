// What a process knows of its couriers: those that work, process groups that had one, and what
// others should know of where this process waits. Internal to courier.cpp.
#pragma once

#include "dist/collective_queue.h"

#include <atomic>
#include <map>

namespace retape::dist::detail {

// The couriers of this process. Global, as what they serve is: a Group may be made anywhere.
struct Courier::Registry {
  std::atomic<uint64_t> started{0};  // calls of this process, through any of them
  std::atomic<WhileWaiting> while_waiting{nullptr};
  std::mutex mutex;
  std::vector<std::weak_ptr<Courier>> couriers;                // until their threads have ended
  std::map<c10d::ProcessGroup*, std::weak_ptr<Courier>> held;  // until nobody holds them

  // A process group that is made anew after another was destroyed has the same keys in the same
  // store, where the other's still are. Ranks make both, so all of them count alike.
  struct Lives {
    c10::weak_intrusive_ptr<c10d::ProcessGroup> last{ProcessGroupPtr()};
    int count = 0;
  };
  std::map<std::string, Lives> lives;  // by the prefix of a board

  // A process group whose couriers have ended, and which the process may still have when it ends:
  // others must be told of that, though no Group is left. Nothing here holds its store, not even
  // weakly: it would not end.
  struct Past {
    pid_t process;
    c10::weak_intrusive_ptr<c10d::ProcessGroup> process_group;
    std::vector<int> ranks;
    int index;
    std::optional<int> store_host;

    std::optional<Transport> there() const {
      const auto held = process_group.lock();
      if (!held || process != ::getpid()) {
        return std::nullopt;
      }
      return Transport{held->getStore(), held->getStore(), held, ranks, index, store_host};
    }
  };
  std::map<c10d::ProcessGroup*, Past> past;

  void remember(const Transport& transport) {
    const std::lock_guard guard(mutex);
    std::erase_if(past, [](const auto& each) { return each.second.process_group.expired(); });
    const c10::weak_intrusive_ptr<c10d::ProcessGroup> process_group(transport.process_group);
    past.insert_or_assign(
        transport.process_group.get(),
        Past{::getpid(), process_group, transport.ranks, transport.index, transport.store_host});
  }

  int life_of(const Transport& transport) {
    if (!transport.process_group) {
      return 0;
    }
    auto& [last, count] = lives[as_board(transport.store).prefix];
    if (last.lock() != transport.process_group) {
      last = c10::weak_intrusive_ptr<c10d::ProcessGroup>(transport.process_group);
      ++count;
    }
    return count - 1;
  }

  std::vector<std::shared_ptr<Courier>> all() {
    const std::lock_guard guard(mutex);
    std::vector<std::shared_ptr<Courier>> all;
    for (const auto& each : couriers) {
      if (auto courier = each.lock()) {
        all.push_back(std::move(courier));
      }
    }
    return all;
  }

  std::mutex words_mutex;
  std::map<std::string, std::string> words;  // that this process has left, by prefix
  std::string failure;                       // the last one
  uint64_t failed_after = 0;                 // calls that had been started
};

}  // namespace retape::dist::detail
