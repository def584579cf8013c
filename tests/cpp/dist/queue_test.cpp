// One process group's calls, seen from within: ranks are threads here, which share a store of this
// process, and a transport that arrives when the test says so.
#include "dist/liveness_monitor.h"
#include "dist/store_text.h"

#include <retape/dist/group.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <thread>

namespace retape::dist {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class Sum : public c10d::Work {
 public:
  explicit Sum(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  bool wait(milliseconds) override {
    future_->waitAndThrow();
    return true;
  }

  at::Tensor tensor_;
  c10::intrusive_ptr<c10::ivalue::Future> future_ = c10::make_intrusive<c10::ivalue::Future>(
      c10::NoneType::get());
};

// What all ranks have sent of one sum; arrives when it is complete, and not held back.
class Wire {
 public:
  explicit Wire(size_t ranks) : ranks_(ranks) {}

  c10::intrusive_ptr<c10d::Work> send(const at::Tensor& tensor) {
    const auto work = c10::make_intrusive<Sum>(tensor);
    const std::lock_guard guard(mutex_);
    sent_.push_back(work);
    changed_.notify_all();
    deliver();
    return work;
  }

  void hold() {
    const std::lock_guard guard(mutex_);
    held_ = true;
  }

  void wait_until_sent() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return sent_.size() == ranks_; });
  }

  void release() {
    const std::lock_guard guard(mutex_);
    held_ = false;
    deliver();
  }

 private:
  void deliver() {
    if (held_ || sent_.size() < ranks_) {
      return;
    }
    auto total = sent_[0]->tensor_.clone();
    for (size_t i = 1; i < ranks_; ++i) {
      total += sent_[i]->tensor_;
    }
    for (const auto& work : std::exchange(sent_, {})) {
      work->tensor_.copy_(total);
      work->future_->markCompleted();
    }
  }

  const size_t ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<c10::intrusive_ptr<Sum>> sent_;
  bool held_ = false;
};

class Transport : public c10d::Backend {
 public:
  Transport(int rank, int size, std::shared_ptr<Wire> wire)
      : Backend(rank, size),
        wire_(std::move(wire)) {}
  const std::string getBackendName() const override { return "test"; }
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions&) override {
    return wire_->send(tensors.at(0));
  }

 private:
  std::shared_ptr<Wire> wire_;
};

// Counts what is asked of the store behind it, by function.
using Counts = std::map<std::string, int>;
class CountingStore : public c10d::Store {
 public:
  struct Shared {
    std::mutex mutex;
    Counts counts;
  };
  CountingStore(c10::intrusive_ptr<c10d::Store> store, std::shared_ptr<Shared> shared)
      : store_(std::move(store)),
        shared_(std::move(shared)) {}

  using c10d::Store::compareSet;
  using c10d::Store::set;
  using Bytes = std::vector<uint8_t>;
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<CountingStore>(store_->clone(), shared_);
  }
  void set(const std::string& key, const Bytes& value) override {
    count("set");
    store_->set(key, value);
  }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& next) override {
    count("compareSet");
    return store_->compareSet(key, expected, next);
  }
  Bytes get(const std::string& key) override {
    count("get");
    return store_->get(key);
  }
  int64_t add(const std::string& key, int64_t value) override {
    count("add");
    return store_->add(key, value);
  }
  bool deleteKey(const std::string& key) override {
    count("deleteKey");
    return store_->deleteKey(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    count("check");
    return store_->check(keys);
  }
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override {
    count("multiGet");
    return store_->multiGet(keys);
  }
  int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    count("wait");
    store_->wait(keys, timeout);
  }
  bool hasExtendedApi() const override { return true; }

 private:
  void count(const std::string& what) {
    const std::lock_guard guard(shared_->mutex);
    ++shared_->counts[what];
  }
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<Shared> shared_;
};

// Ranks of one group, each with a process group of its own.
class Ranks {
 public:
  explicit Ranks(int size, milliseconds timeout = std::chrono::minutes(2))
      : wire(std::make_shared<Wire>(size)) {
    std::vector<int> all(size);
    std::iota(all.begin(), all.end(), 0);
    for (int rank = 0; rank < size; ++rank) {
      shared.push_back(std::make_shared<CountingStore::Shared>());
      const auto store = c10::make_intrusive<c10d::PrefixStore>(
          "group", c10::make_intrusive<CountingStore>(behind, shared.back()));
      process_groups.push_back(c10::make_intrusive<c10d::ProcessGroup>(store, rank, size));
      process_groups.back()->setBackend(
          c10::DeviceType::CPU,
          c10d::ProcessGroup::BackendType::CUSTOM,
          c10::make_intrusive<Transport>(rank, size, wire));
      GroupOptions options;
      options.timeout = timeout;
      groups.emplace_back("ranks", all, process_groups.back(), options);
    }
  }

  // On a thread of each rank; errors as texts.
  std::vector<std::string> on_each(const std::function<void(int)>& body) const {
    std::vector<std::future<std::string>> running;
    for (int rank = 0; rank < static_cast<int>(groups.size()); ++rank) {
      running.push_back(std::async(std::launch::async, [&body, rank]() -> std::string {
        try {
          body(rank);
        } catch (const CollectiveError& error) {
          return error.what();
        }
        return "";
      }));
    }
    std::vector<std::string> errors;
    for (auto& each : running) {
      errors.push_back(each.get());
    }
    return errors;
  }

  Counts counts(int rank) const {
    const std::lock_guard guard(shared[rank]->mutex);
    return shared[rank]->counts;
  }

  c10::intrusive_ptr<c10d::HashStore> behind = c10::make_intrusive<c10d::HashStore>();
  std::shared_ptr<Wire> wire;
  std::vector<std::shared_ptr<CountingStore::Shared>> shared;
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> process_groups;
  std::vector<Group> groups;
};

using Texts = std::vector<std::string>;

TEST(Queue, RanksThatAreThreadsSum) {
  const Ranks ranks(3);
  const auto errors = ranks.on_each([&](int rank) {
    for (int i = 0; i < 50; ++i) {
      const auto tensor = torch::full({2}, rank + 1.0);
      ranks.groups[rank].sum("a", tensor);
      EXPECT_TRUE(tensor.equal(torch::full({2}, 6.0)));
    }
  });
  EXPECT_EQ(errors, (Texts{"", "", ""}));
}

TEST(Queue, CallsUnderWayAreSummedInOrder) {
  const Ranks ranks(2);
  const auto errors = ranks.on_each([&](int rank) {
    std::vector<at::Tensor> tensors;
    std::vector<Pending> pending;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(torch::full({1}, i * 1.0));
      pending.push_back(ranks.groups[rank].sum_async("a" + std::to_string(i), tensors.back()));
    }
    for (int i = 19; i >= 0; --i) {
      pending[i].wait();
      EXPECT_EQ(tensors[i].item<double>(), 2.0 * i);
    }
  });
  EXPECT_EQ(errors, (Texts{"", ""}));
}

Counts minus(const Counts& after, const Counts& before) {
  Counts more;
  for (const auto& [what, count] : after) {
    const auto known = before.find(what);
    if (const int difference = count - (known == before.end() ? 0 : known->second)) {
      more[what] = difference;
    }
  }
  return more;
}

// set has no reply, heartbeats are nothing else.
TEST(Queue, ACallIsThreeRoundTripsForTheLastAndOneAndALookForOthers) {
  const Ranks ranks(2);
  ranks.on_each([&](int rank) { ranks.groups[rank].barrier("both are there"); });
  for (const int first : {0, 1}) {
    const int last = 1 - first;
    const std::vector<Counts> before{ranks.counts(0), ranks.counts(1)};
    auto waits = std::async(std::launch::async, [&] { ranks.groups[first].barrier("next"); });
    while (minus(ranks.counts(first), before[first])["compareSet"] == 0) {
      std::this_thread::yield();  // until it looks at the gate
    }
    ranks.groups[last].barrier("next");
    waits.get();
    auto of_last = minus(ranks.counts(last), before[last]);
    auto of_first = minus(ranks.counts(first), before[first]);
    of_last.erase("set");
    of_first.erase("set");
    EXPECT_GE(of_first["compareSet"], 2);  // looks
    of_first.erase("compareSet");
    EXPECT_EQ(of_last, (Counts{{"add", 1}, {"multiGet", 1}, {"compareSet", 1}}));
    EXPECT_EQ(of_first, (Counts{{"add", 1}}));
  }
}

// Threads of queues, by their name.
int queues() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");  // may be gone
    std::string name;
    std::getline(file, name);
    count += name == "retape-queue";
  }
  return count;
}

bool queues_come_to(int count) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (queues() != count && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
  return queues() == count;
}

TEST(Queue, HasOneThreadPerProcessGroupWhichEndsWithIt) {
  ASSERT_TRUE(queues_come_to(0));  // of other tests
  {
    const Ranks ranks(2);
    const Group again("again", {0, 1}, ranks.process_groups[0]);
    ranks.on_each([&](int rank) { ranks.groups[rank].barrier("both are there"); });
    EXPECT_TRUE(queues_come_to(2));
  }
  EXPECT_TRUE(queues_come_to(0));
}

// A Group that is made anew has the calls of the one before, and a process group the keys.
TEST(Queue, AProcessGroupThatIsMadeAnewInTheSameStoreBeginsAnew) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  for (int time = 0; time < 3; ++time) {
    std::vector<std::future<std::string>> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.push_back(std::async(std::launch::async, [&, rank]() -> std::string {
        const Group group("ranks", {0, 1}, c10::make_intrusive<c10d::ProcessGroup>(store, rank, 2));
        try {
          group.barrier(time == 1 && rank == 1 ? "odd" : "even");
        } catch (const CollectiveError& error) {
          return error.what();
        }
        return "";
      }));
    }
    for (auto& rank : ranks) {
      EXPECT_THAT(rank.get(), time == 1 ? HasSubstr("call 1: rank 0 would") : HasSubstr(""));
    }
  }
}

thread_local bool interrupts = false;

// Interrupts the next wait of this thread.
class Interrupts {
 public:
  Interrupts() {
    interrupts = true;
    set_while_waiting([] {
      if (interrupts) {
        throw std::runtime_error("interrupted");
      }
    });
  }
  ~Interrupts() {
    interrupts = false;
    set_while_waiting(nullptr);
  }
};

void wait_interrupted(Pending pending) {
  const Interrupts now;
  EXPECT_THROW(pending.wait(), std::runtime_error);
}

// All have come, and the others have the sum: ranks are no longer alike.
TEST(Queue, WhoIsInterruptedInATransportBreaksTheGroup) {
  const Ranks ranks(2);
  ranks.wire->hold();
  const auto dropped = torch::ones({2}), summed = torch::ones({2});
  auto pending = ranks.groups[0].sum_async("a", dropped);
  auto other = ranks.groups[1].sum_async("a", summed);
  ranks.wire->wait_until_sent();
  wait_interrupted(std::move(pending));
  ranks.wire->release();
  other.wait();
  EXPECT_TRUE(summed.equal(torch::full({2}, 2.0)));
  EXPECT_TRUE(dropped.equal(torch::ones({2})));
  for (const auto& error : ranks.on_each([&](int rank) { ranks.groups[rank].sum("b", summed); })) {
    EXPECT_THAT(
        error,
        HasSubstr("call 2, sum \"b\" Float[2]: rank 0 was interrupted, and left the call before"));
  }
  EXPECT_TRUE(summed.equal(torch::full({2}, 2.0)));
}

// withdraw drops no result: a Pending that is waited for has it.
TEST(Queue, WhoWithdrawsFromATransportGoesOn) {
  const Ranks ranks(2);
  ranks.wire->hold();
  const auto a = torch::ones({2}), b = torch::ones({2});
  auto pending = ranks.groups[0].sum_async("a", a), other = ranks.groups[1].sum_async("a", b);
  ranks.wire->wait_until_sent();
  ranks.groups[0].withdraw();
  ranks.wire->release();
  pending.wait();
  other.wait();
  EXPECT_TRUE(a.equal(torch::full({2}, 2.0)) && b.equal(a));
  EXPECT_EQ(
      ranks.on_each([&](int rank) { ranks.groups[rank].barrier("as before"); }), (Texts{"", ""}));
}

TEST(Queue, ATransportThatTakesLongerThanTheTimeoutGoesOnIfAllRanksAreThere) {
  const Ranks ranks(2, milliseconds(500));
  ranks.on_each([&](int rank) { ranks.groups[rank].barrier("both are there"); });
  ranks.wire->hold();
  const auto a = torch::ones({2}), b = torch::ones({2});
  auto pending = ranks.groups[0].sum_async("a", a), other = ranks.groups[1].sum_async("a", b);
  ranks.wire->wait_until_sent();
  const auto before = ranks.counts(0);
  while (minus(ranks.counts(0), before)["check"] == 0) {
    std::this_thread::yield();  // until it looks whether the other has left
  }
  ranks.wire->release();
  pending.wait();
  other.wait();
  EXPECT_TRUE(a.equal(torch::full({2}, 2.0)) && b.equal(a));
}

// ---- who is to blame

namespace life {

using detail::LivenessMonitor;

struct Members {
  explicit Members(int size) {
    std::vector<int> ranks;
    for (int i = 0; i < size; ++i) {
      ranks.push_back(10 + i);
    }
    for (int i = 0; i < size; ++i) {
      monitors.push_back(std::make_unique<LivenessMonitor>(store, store, ranks, i));
      monitors.back()->beat("");
    }
  }
  // Index 0 misses `indices`, while those in `alive` beat.
  LivenessMonitor::Blame blame(const std::vector<int>& indices, const std::vector<int>& alive) {
    return monitors[0]->examine(indices, [&] {
      for (const int index : alive) {
        monitors[index]->beat("");
      }
    });
  }
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<LivenessMonitor>> monitors;
};

using Numbers = std::vector<int>;

TEST(Liveness, OfThoseThatAreMissedTheSilentOneIsToBlame) {
  Members members(3);
  EXPECT_EQ(members.blame({1, 2}, {1}).ranks, Numbers{12});
}

TEST(Liveness, WhereAllAreThereNoneIs) {
  Members members(3);
  EXPECT_EQ(members.blame({0, 1, 2}, {1, 2}).ranks, Numbers{});
}

TEST(Liveness, OneThatFailedElsewhereIsReplacedByWhoItFailedFor) {
  Members members(3);
  members.monitors[1]->beat(detail::written(CollectiveError("[pair] for 17", {17})));
  const auto blame = members.blame({1}, {});
  EXPECT_EQ(blame.ranks, Numbers{17});
  EXPECT_EQ(blame.why, " rank 11 has failed elsewhere: [pair] for 17");
}

TEST(Liveness, OneWhoseProcessEndedIsToBlameIfNoneIsSilent) {
  Members members(3);
  members.monitors[1]->leave();
  const auto blame = members.blame({1}, {});
  EXPECT_EQ(blame.ranks, Numbers{11});
  EXPECT_EQ(blame.why, " rank 11 has ended.");
  EXPECT_EQ(members.blame({1, 2}, {}).ranks, Numbers{12});
}

TEST(Liveness, TheFirstVerdictStands) {
  Members members(2);
  EXPECT_STREQ(members.monitors[0]->decide(CollectiveError("first", {10})).what(), "first");
  EXPECT_STREQ(members.monitors[1]->decide(CollectiveError("second", {11})).what(), "first");
  EXPECT_THROW(members.blame({1}, {}), CollectiveError);
}

TEST(Liveness, TheHostOfTheStoreServesUntilTheOthersHaveLeft) {
  Members members(3);
  members.monitors[1]->leave();
  members.monitors[2]->leave();
  members.monitors[0]->serve(std::chrono::steady_clock::time_point::max());
}

TEST(StoreText, WhatIsDecidedFirstStands) {
  c10d::HashStore store;
  EXPECT_EQ(detail::read(store, "key"), std::nullopt);
  EXPECT_EQ(detail::decide(store, "key", "a"), "a");
  EXPECT_EQ(detail::decide(store, "key", "b"), "a");
  EXPECT_EQ(detail::read(store, "key"), "a");
}

}  // namespace life

}  // namespace
}  // namespace retape::dist
