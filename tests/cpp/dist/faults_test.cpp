// Ranks that are killed, stopped or late at random points of a step. Every survivor ends with an error
// that names them, by the timeout and two seconds; nobody hangs, and nobody is aborted.
#include "ranks.h"

#include <signal.h>
#include <sys/time.h>

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

// Calls of all kinds, some of them large enough to be hit in the middle. `before` is called ahead of each.
void work(const World& world, const std::function<void()>& before) {
  const auto all = world.all();
  const auto large = torch::ones({1 << 20});
  for (int step = 0; step < 1000; ++step) {
    before();
    all.sum("large", large);
    before();
    all.broadcast("large", large, step % kRanks);
    before();
    all.barrier("step");
    before();
    SumReducer reducer(all);
    reducer.add("part", Partial(large.narrow(0, 0, 1000)));
    reducer.reduce();
  }
}

// A fault in the rank itself, at an instant within its work: by a timer, so that it can be anywhere.
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

std::vector<RankEnd> run(Fault fault, int who, milliseconds when) {
  RunOptions options;
  options.world.timeout = kTimeout;
  options.timeout = milliseconds(60000);
  options.patience = milliseconds(3200);  // one that is stopped would never end
  return run_ranks(
      kRanks,
      [&](World& world) {
        world.all().barrier("start");
        auto last = Clock::now();
        bool late = false;
        if (world.rank() == who && fault != Fault::Delay) {
          arrange(fault, when);
        }
        const auto begin = last;
        try {
          work(world, [&] {
            last = Clock::now();
            if (world.rank() == who && fault == Fault::Delay && !late && last - begin >= when) {
              late = true;
              std::this_thread::sleep_for(kTimeout * 3 / 2);  // the fault itself: longer than others wait
            }
          });
        } catch (const CollectiveError& error) {
          const auto took = std::chrono::duration_cast<milliseconds>(Clock::now() - last);
          std::string named;
          for (const int rank : error.ranks()) {
            named += std::to_string(rank) + " ";
          }
          throw std::runtime_error("named " + named + "after " + std::to_string(took.count()) + " ms: " + error.what());
        }
      },
      options);
}

class Faults : public ::testing::TestWithParam<int> {};

TEST_P(Faults, EverySurvivorNamesTheRankInTime) {
  std::mt19937 random(GetParam());
  const auto fault = static_cast<Fault>(GetParam() % 3);
  const int who = static_cast<int>(random() % kRanks);
  const milliseconds when(random() % 60);
  const auto ends = run(fault, who, when);
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto& end = ends[rank];
    SCOPED_TRACE("fault " + std::to_string(GetParam() % 3) + " on rank " + std::to_string(who) + " after " +
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
      EXPECT_EQ(end.error.rfind("named " + std::to_string(who) + " after ", 0), 0u);
      const auto at = end.error.find("after ");
      ASSERT_NE(at, std::string::npos);
      EXPECT_LE(std::stoi(end.error.substr(at + 6)), kTimeout.count() + 2000);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AtRandomPoints, Faults, ::testing::Range(0, 21));

}  // namespace
}  // namespace retape::dist
