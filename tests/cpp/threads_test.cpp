#include "support.h"

#include <thread>

namespace retape::testing {
namespace {

Tensor network(const Tensor& x) {
  auto y = x * 1.5;
  for (int i = 0; i < 8; ++i) {
    y = torch::dropout(torch::gelu(y), 0.2, true).sin() + x;
  }
  return y;
}

TEST(Threads, AThreadWithoutAScopeRecordsNothing) {
  Recompute scope(drop_all());
  bool recording = true;
  uint64_t before = scope.stats().ops_recorded;
  std::thread([&] {
    recording = is_recording();
    network(leaf({4, 4})).sum().backward();
  }).join();
  EXPECT_FALSE(recording);
  EXPECT_EQ(scope.stats().ops_recorded, before);
}

TEST(Threads, BackwardOnAnotherThread) {
  const auto plain = leaf({16, 16});
  torch::manual_seed(5);
  network(plain).sum().backward();
  const auto x = leaf({16, 16});
  torch::manual_seed(5);
  Recompute scope(drop_all());
  const auto loss = network(x).sum();
  scope.close();
  std::thread([&] { loss.backward(); }).join();
  EXPECT_GT(scope.stats().ops_replayed, 0u);
  EXPECT_TRUE(same_bits(plain.grad(), x.grad()));
}

TEST(Threads, TwoBackwardsOfOneTapeAtTheSameTime) {
  const auto about_one = [] {
    return torch::ones({1}).exp().log();
  };  // which is not one on every CPU
  const auto expected = [&](double factor) {
    const auto x = leaf({32, 32});
    (((x * 1.5) * about_one()).exp().sin() * factor).tanh().sum().backward();
    return x.grad();
  };
  for (int round = 0; round < 20; ++round) {
    const auto a = leaf({32, 32});
    const auto b = leaf({32, 32});
    Tensor loss_a, loss_b;
    {
      Recompute scope(drop_all());
      const auto shared = about_one();
      loss_a = (((a * 1.5) * shared).exp().sin() * 2.0).tanh().sum();
      loss_b = (((b * 1.5) * shared).exp().sin() * 3.0).tanh().sum();
    }
    std::thread other([&] { loss_a.backward(); });
    loss_b.backward();
    other.join();
    EXPECT_TRUE(same_bits(a.grad(), expected(2.0)));
    EXPECT_TRUE(same_bits(b.grad(), expected(3.0)));
  }
}

TEST(Threads, EachThreadHasItsOwnTape) {
  std::vector<std::thread> threads;
  std::vector<int> good(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int step = 0; step < 20; ++step) {
        const auto x = leaf({16, 16}, static_cast<uint64_t>(t));
        const auto y = leaf({16, 16}, static_cast<uint64_t>(t));
        const auto f = [](const Tensor& v) {
          return torch::softmax((v * 2).sin().exp(), -1).square().sum();
        };
        f(x).backward();
        Tensor loss;
        {
          Recompute scope(step % 2 ? Policy::full() : Policy::cheap());
          loss = f(y);
        }
        loss.backward();
        good[static_cast<size_t>(t)] += same_bits(x.grad(), y.grad()) ? 1 : 0;
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(good, std::vector<int>(4, 20));
}

TEST(Threads, GraphMayDieOnAnotherThreadWhileForwardGoesOn) {
  MemoryMeter meter;
  Recompute scope(drop_all());
  for (int i = 0; i < 50; ++i) {
    auto loss = std::make_unique<Tensor>(network(leaf({8, 8})).sum());
    std::thread other([&loss] { loss.reset(); });
    network(leaf({8, 8})).sum();
    other.join();
  }
  EXPECT_GT(scope.stats().ops_recorded, 0u);
  EXPECT_EQ(meter.current(), 0);  // every graph is gone, whichever thread ended it
}

TEST(Threads, GraphMayOutliveTheThreadLocalStateOfItsThread) {
  std::thread([] {
    thread_local Tensor last;  // made first, so destroyed last
    last = torch::ones({1});
    Recompute scope(drop_all());
    last = network(leaf({8, 8})).sum();
    last.backward({}, true);
  }).join();
  EXPECT_FALSE(is_recording());
}

TEST(Threads, AScopeWhoseThreadHasEndedIsLeftAloneByAThreadWithItsId) {
  std::unique_ptr<Recompute> scope;
  std::thread first([&] { scope = std::make_unique<Recompute>(drop_all()); });
  const auto id = first.get_id();
  first.join();
  for (int i = 0; i < 100 && scope != nullptr; ++i) {  // ids are given out again, sooner or later
    std::thread([&] {
      if (std::this_thread::get_id() == id) {
        EXPECT_THROW(scope->close(), UsageError);
        scope.reset();
        EXPECT_FALSE(is_recording());
      }
    }).join();
  }
  if (scope != nullptr) {
    GTEST_SKIP() << "no other thread got the id";
  }
}

}  // namespace
}  // namespace retape::testing
