// Ranks that are killed, stopped or late at random points of a step. Every survivor ends with an
// error that names them, by the timeout and two seconds; nobody hangs, and nobody is aborted.
#include "ranks.h"

#include <signal.h>
#include <sys/time.h>

#include <array>
#include <chrono>
#include <random>
#include <thread>

namespace retape::dist {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kRanks = 3;
constexpr milliseconds kTimeout{1000};

enum class Fault { Kill, Stop, Delay };

// Of a clock that all processes share.
int64_t ms(Clock::time_point at) {
  return std::chrono::duration_cast<milliseconds>(at.time_since_epoch()).count();
}

using Clocked = std::function<void(const std::function<void()>&)>;

// Makes a call that is given `tensors`. Where it raises they are as they were.
void untouched(
    const std::vector<at::Tensor>& tensors,
    const Clocked& clocked,
    const std::function<void()>& call) {
  std::vector<at::Tensor> before;
  for (const auto& tensor : tensors) {
    before.push_back(tensor.clone());
  }
  try {
    clocked(call);
  } catch (const CollectiveError&) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      RANK_EXPECT(testing::same_bits(tensors[i], before[i]));
    }
    throw;
  }
}

void sums(World& world, const Clocked& clocked) {
  const auto large = torch::full({1 << 20}, world.rank() + 1.0);
  untouched({large}, clocked, [&] { world.all().sum("large", large); });
  untouched({large}, clocked, [&] { world.all().broadcast("large", large, 2); });
}

void reductions(World& world, const Clocked& clocked) {
  ReducerOptions options;
  options.bucket_bytes = 1 << 18;
  SumReducer reducer(world.all(), options);
  std::vector<at::Tensor> parts;
  for (int i = 0; i < 8; ++i) {
    parts.push_back(torch::full({1 << 17}, world.rank() + 1.0));
    reducer.add(std::to_string(i), Partial(parts.back()));
  }
  const auto without = torch::ones({2}, torch::requires_grad());  // rank 0 alone has a gradient
  if (world.rank() == 0) {
    without.mutable_grad() = torch::ones({2});
  }
  reducer.add_gradients({{"without", without}});
  try {
    untouched(parts, clocked, [&] { reducer.reduce(); });
  } catch (const CollectiveError&) {
    RANK_EXPECT(without.grad().defined() == (world.rank() == 0));
    throw;
  }
}

void edges(World& world, const Clocked& clocked) {
  const Topology topology(7, {{"a", {0, 1}}, {"b", {2}}});
  const Edge edge("edge", topology, "a", "b", world.all());
  const auto like = torch::ones(
      {topology.pool(world.rank() < 2 ? "a" : "b").shards.at(world.rank() % 2).size(), 1 << 15});
  if (world.rank() < 2) {
    untouched({like}, clocked, [&] { edge.send("x", like); });
    untouched({like}, clocked, [&] { edge.receive_gradient("x", like); });
  } else {
    untouched({like}, clocked, [&] { edge.receive("x", like); });
    untouched({like}, clocked, [&] { edge.send_gradient("x", like, like); });
  }
}

void numbers(World& world, const Clocked& clocked) {
  const auto part = torch::full({1 << 16}, world.rank() + 1.0);
  untouched({part}, clocked, [&] { world.all().gather("part", part); });
  untouched({part}, clocked, [&] { global_residual("total", part, world.all()); });
  clocked([&] { world.all().barrier("all"); });
  clocked([&] { count_global("rows", world.rank() + 1, world.all()); });
  const auto parameter = torch::ones({2}, torch::requires_grad());
  const auto gradient = parameter.mutable_grad() = torch::ones({2});
  untouched(
      {gradient}, clocked, [&] { clip_grad_norm({{{parameter}, world.all()}}, 0.5, world.all()); });
}

void groups(World& world, const Clocked& clocked) {
  static int made = 0;
  clocked([&] { world.group("group " + std::to_string(made++), {0, 1, 2}); });
}

constexpr std::array kWork{sums, reductions, edges, numbers, groups};

// All kinds of calls, again and again, from one of them on.
void work(World& world, size_t first, const Clocked& clocked) {
  for (size_t step = first; step < first + 1000; ++step) {
    kWork.at(step % kWork.size())(world, clocked);
  }
}

// A fault in the rank itself, at an instant within its work: by a timer, so that it can be
// anywhere.
void arrange(Fault fault, milliseconds when) {
  ::signal(SIGALRM, SIG_DFL);
  if (fault == Fault::Stop) {
    ::signal(SIGALRM, [](int) { ::raise(SIGSTOP); });
  }
  itimerval timer{};
  timer.it_value.tv_sec = when.count() / 1000;
  timer.it_value.tv_usec = when.count() % 1000 * 1000 + 1;
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}

std::vector<RankEnd> run(Fault fault, int who, milliseconds when, size_t first) {
  RunOptions options;
  options.world.timeout = kTimeout;
  options.timeout = milliseconds(60000);
  options.patience = milliseconds(3200);  // one that is stopped would never end
  return run_ranks(
      kRanks,
      [&](World& world) {
        world.all().barrier("start");
        const auto begin = Clock::now();
        auto last = begin;
        bool late = false;
        if (world.rank() == who && fault != Fault::Delay) {
          arrange(fault, when);
        }
        try {
          work(world, first, [&](const std::function<void()>& call) {
            last = Clock::now();
            if (world.rank() == who && fault == Fault::Delay && !late && last - begin >= when) {
              late = true;
              std::this_thread::sleep_for(
                  kTimeout * 3 / 2);  // the fault itself: longer than others wait
            }
            call();
          });
        } catch (const CollectiveError& error) {
          std::string named;
          for (const int rank : error.ranks()) {
            named += std::to_string(rank) + " ";
          }
          throw std::runtime_error(
              "named " + named + "since " + std::to_string(ms(last)) + ": " + error.what());
        }
      },
      options);
}

class Faults : public ::testing::TestWithParam<int> {};

TEST_P(Faults, EverySurvivorNamesTheRankInTime) {
  std::mt19937 random(GetParam());
  const auto fault = static_cast<Fault>(GetParam() % 3);
  const int who = static_cast<int>(random() % kRanks);
  const milliseconds when(random() % 100);
  const auto ends = run(fault, who, when, GetParam() / 3 % kWork.size());
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto& end = ends[rank];
    SCOPED_TRACE(
        "fault " + std::to_string(GetParam() % 3) + " on rank " + std::to_string(who) + " after " +
        std::to_string(when.count()) + " ms; rank " + std::to_string(rank) + ": " + end.error);
    if (rank == who && fault == Fault::Kill) {
      EXPECT_EQ(end.signal, SIGALRM);
    } else if (rank == who && fault == Fault::Stop) {
      EXPECT_EQ(end.signal, SIGKILL);  // stopped for good, until run_ranks ends it
    } else if (rank == who) {
      EXPECT_EQ(end.exit_code, 1);  // it comes to a group that is broken, or to nobody
    } else {
      EXPECT_EQ(end.signal, 0) << "aborted";
      EXPECT_EQ(end.exit_code, 1);
      EXPECT_EQ(end.error.rfind("named " + std::to_string(who) + " since ", 0), 0u);
      const auto at = end.error.find("since ");
      ASSERT_NE(at, std::string::npos);
      EXPECT_LE(
          ms(end.at) - std::stoll(end.error.substr(at + 6)),
          kTimeout.count() + 2000);  // its process has ended
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AtRandomPoints, Faults, ::testing::Range(0, 60));  // 20 of each

}  // namespace
}  // namespace retape::dist
