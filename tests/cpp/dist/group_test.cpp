// What ranks do together, and what happens where they do not do the same.
#include "ranks.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

namespace retape::dist {
namespace {

using testing::error_of;
using testing::expect_ranks;
using testing::same_bits;
using testing::with_timeout;

TEST(Group, SumsInPlace) {
  expect_ranks(3, [](World& world) {
    const auto tensor = torch::full({2, 3}, world.rank() + 1.0);
    world.all().sum("tensor", tensor);
    RANK_EXPECT(same_bits(tensor, torch::full({2, 3}, 6.0)));
  });
}

TEST(Group, SumOfTensorsThatAreNotContiguous) {
  expect_ranks(2, [](World& world) {
    const auto whole = torch::arange(12, torch::kFloat).view({3, 4});
    const auto tensor = whole.t().narrow(0, 1, 2);
    const auto before = tensor.clone();
    world.all().sum("tensor", tensor);
    RANK_EXPECT(same_bits(tensor, before * 2));
    RANK_EXPECT_EQ(whole[2][3].item<float>(), 11.f);  // not part of it
  });
}

TEST(Group, SumIsTheSameBitsOnEveryRank) {
  expect_ranks(3, [](World& world) {
    for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
      torch::manual_seed(world.rank());
      const auto tensor = torch::randn({100003}).to(dtype);
      const auto all = world.all();
      all.sum("tensor", tensor);
      const auto copies = all.gather("copies", tensor);
      RANK_EXPECT(same_bits(copies[0], copies[1]) && same_bits(copies[0], copies[2]));
    }
  });
}

TEST(Group, ComplexTensors) {
  expect_ranks(2, [](World& world) {
    const auto tensor = torch::complex(torch::ones({3}), torch::full({3}, world.rank() * 1.0));
    const auto copies = world.all().gather("copies", tensor);
    RANK_EXPECT(copies[1].equal(torch::complex(torch::ones({3}), torch::ones({3}))));
    world.all().sum("tensor", tensor);
    RANK_EXPECT(tensor.equal(torch::complex(torch::full({3}, 2.0), torch::ones({3}))));
  });
}

TEST(Group, SubgroupsHaveTheirOwnIndexAndSum) {
  expect_ranks(4, [](World& world) {
    const bool even = world.rank() % 2 == 0;
    const auto group = world.group(
        even ? "even" : "odd", even ? std::vector<int>{2, 0} : std::vector<int>{1, 3});
    RANK_EXPECT_EQ(group.index(), even ? (world.rank() == 2 ? 0 : 1) : world.rank() / 2);
    RANK_EXPECT_EQ(group.rank(), world.rank());
    const auto tensor = torch::full({1}, world.rank() * 1.0);
    group.sum("tensor", tensor);
    RANK_EXPECT_EQ(tensor.item<double>(), even ? 2.0 : 4.0);
  });
}

TEST(Group, BroadcastFromAnyMember) {
  expect_ranks(3, [](World& world) {
    const auto tensor = torch::full({2}, world.rank() * 1.0);
    world.all().broadcast("tensor", tensor, 2);
    RANK_EXPECT_EQ(tensor[1].item<double>(), 2.0);
  });
}

TEST(Group, CallsUnderWayAreMadeInOrder) {
  expect_ranks(3, [](World& world) {
    const auto all = world.all();
    std::vector<at::Tensor> tensors;
    std::vector<Pending> pending;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(torch::full({1}, i * 1.0));
      pending.push_back(all.sum_async("tensor " + std::to_string(i), tensors.back()));
    }
    for (int i = 19; i >= 0; --i) {  // in any order
      pending[i].wait();
      RANK_EXPECT_EQ(tensors[i].item<double>(), i * 3.0);
    }
  });
}

// Keys in the store that all ranks of a test use.
int64_t keys_in_store() {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(std::stoi(std::getenv("MASTER_PORT")));
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>(std::getenv("MASTER_ADDR"), options)->getNumKeys();
}

TEST(Group, ManyCallsLeaveNoKeysBehind) {
  expect_ranks(2, [](World& world) {
    const auto all = world.all(), other = world.group("other", {0, 1});
    // Between two calls of another group nobody is in a call of this one.
    const auto count = [&](const std::string& when) {
      other.barrier(when);
      const auto keys = keys_in_store();
      other.barrier("counted " + when);
      return keys;
    };
    all.barrier("step");
    const auto early = count("early");
    for (int i = 0; i < 300; ++i) {
      all.barrier("step");
    }
    // Some come and go: of the call under way, and where a rank is that is missed.
    RANK_EXPECT(count("late") <= early + 20);
  });
}

TEST(Group, AloneEveryCallIsDoneAtOnce) {
  const auto group = Group::alone("alone", 5);
  const auto tensor = torch::ones({2});
  group.sum("tensor", tensor);
  group.broadcast("tensor", tensor);
  group.barrier("end");
  EXPECT_TRUE(same_bits(tensor, torch::ones({2})));
  EXPECT_TRUE(same_bits(group.gather("tensor", tensor).at(0), tensor));
  EXPECT_EQ(group.rank(), 5);
}

// Gloo's ring begins with another rank in each part of a tensor: most numbers round otherwise.
TEST(Group, RanksAreAddedInTheirOrderOnRequest) {
  expect_ranks(3, [](World& world) {
    const auto of = [](int rank) {
      return torch::randn({1000}, at::make_generator<at::CPUGeneratorImpl>(rank + 7));
    };
    const auto one_by_one = (of(0) + of(1)) + of(2);
    const auto alone = of(world.rank()), any = of(world.rank());
    world.all().sum("alone", alone, Order::ByRank);
    RANK_EXPECT(same_bits(alone, one_by_one));
    world.all().sum("any", any);
    RANK_EXPECT(!same_bits(any, one_by_one) && torch::allclose(any, one_by_one));
    ReducerOptions options;
    options.order = Order::ByRank;
    SumReducer reducer(world.all(), options);
    const auto first = of(world.rank()), whole = torch::full({2}, world.rank(), torch::kLong);
    reducer.add("first", Partial(first));
    reducer.add("whole", Partial(whole));
    reducer.reduce();
    RANK_EXPECT(same_bits(first, one_by_one));
    RANK_EXPECT(same_bits(whole, torch::full({2}, 3, torch::kLong)));
    RANK_EXPECT_TEXT(
        error_of(
            [&] { world.all().sum("a", any, world.rank() == 0 ? Order::ByRank : Order::Any); }),
        "rank 0 would sum by rank \"a\"",
        "ranks 1 and 2 would sum \"a\"");
  });
}

TEST(Group, ADtypeThatTransportsDoNotAddIsRefusedAndNothingBreaks) {
  expect_ranks(2, [](World& world) {
    for (const auto dtype : {torch::kShort, torch::kBool}) {
      try {
        world.all().sum("a", torch::ones({2}, dtype));
        RANK_EXPECT(!"raised");
      } catch (const UsageError& error) {
        RANK_EXPECT_TEXT(error.what(), "[sum] \"a\" is", "which transports do not add");
      }
    }
    world.all().barrier("as before");
  });
}

TEST(Group, WhoWaitsCanBeInterrupted) {
  expect_ranks(2, [](World& world) {
    const auto all = world.all(), others = world.group("others", {0, 1});
    const auto tensor = torch::ones({2});
    if (world.rank() == 0) {
      set_while_waiting([] { throw std::runtime_error("interrupted"); });
      std::string text;
      try {
        all.sum("a", tensor);
      } catch (const std::runtime_error& error) {
        text = error.what();
      }
      set_while_waiting(nullptr);
      RANK_EXPECT_EQ(text, "interrupted");
      RANK_EXPECT(same_bits(tensor, torch::ones({2})));
    }
    others.barrier("until then the other has not come");
  });
}

TEST(Group, ACallFromWhichARankWithdrawsFailsOnAll) {
  expect_ranks(3, [](World& world) {
    const auto all = world.all(), others = world.group("others", {0, 1, 2});
    all.withdraw();  // from none
    all.barrier("as before");
    const auto tensor = torch::ones({2});
    const auto fails = [&](const std::function<void()>& call) {
      RANK_EXPECT_TEXT(
          error_of(call), "[world] call 4, sum \"a\"", "rank 1 was interrupted, and left the call");
      RANK_EXPECT(same_bits(tensor, torch::ones({2})));
    };
    if (world.rank() == 1) {
      auto pending = all.sum_async("a", tensor);
      all.withdraw();
      fails([&] { pending.wait(); });
    } else if (world.rank() == 0) {
      fails([&] { all.sum("a", tensor); });
    }
    others.barrier("until then the last has not come");
    fails([&] { all.sum("a", tensor); });
  });
}

TEST(Group, WhoWaitsForARankThatAbandonsTheGroupStopsWaiting) {
  expect_ranks(3, [](World& world) {
    const auto all = world.all(), others = world.group("others", {0, 1, 2});
    const auto fails = [&] {
      RANK_EXPECT_TEXT(
          error_of([&] { all.barrier("a"); }), "rank 1 was interrupted, and left the call");
    };
    if (world.rank() == 1) {
      all.abandon();
    } else if (world.rank() == 0) {
      fails();
    }
    others.barrier("until then the last has not come");
    fails();
    all.abandon();  // which is broken already
    Group::alone("alone").abandon();
  });
}

// ---- what Gloo would add up without a word

// Runs `call` on three ranks, where rank 1 is the odd one. On every rank: an error that names rank
// 1 and has `parts`; the tensor is as it was.
void expect_odd(
    const std::function<void(const Group&, bool odd, const at::Tensor&)>& call,
    const std::vector<std::string>& parts) {
  expect_ranks(
      3,
      [&](World& world) {
        const auto tensor = torch::full({4}, world.rank() + 1.0, torch::kFloat);
        const auto before = tensor.clone();
        const auto text = error_of([&] { call(world.all(), world.rank() == 1, tensor); });
        RANK_EXPECT_TEXT(text, "rank 1 would");
        testing::expect_text(text, parts, __LINE__);
        RANK_EXPECT(same_bits(tensor, before));
        // Broken from then on: the same error at once.
        RANK_EXPECT_EQ(error_of([&] { world.all().barrier("later"); }), text);
      },
      with_timeout(20000));
}

TEST(Disagreement, AnotherOrderOfTensorsOfOneShape) {
  expect_odd(
      [](const Group& group, bool odd, const at::Tensor& tensor) {
        group.sum(odd ? "b" : "a", tensor);
        group.sum(odd ? "a" : "b", tensor);
      },
      {"sum \"b\" Float[4]", "sum \"a\" Float[4]"});
}

TEST(Disagreement, AnotherShape) {
  expect_odd(
      [](const Group& group, bool odd, const at::Tensor& tensor) {
        group.sum("a", odd ? tensor.view({2, 2}) : tensor);
      },
      {"Float[2,2]", "Float[4]"});
}

TEST(Disagreement, AnotherDtypeOfTheSameWidth) {
  expect_odd(
      [](const Group& group, bool odd, const at::Tensor& tensor) {
        group.sum("a", odd ? tensor.to(torch::kInt) : tensor);
      },
      {"Int[4]", "Float[4]"});
}

TEST(Disagreement, BFloat16AgainstHalf) {
  expect_odd(
      [](const Group& group, bool odd, const at::Tensor& tensor) {
        group.sum("a", tensor.to(odd ? torch::kBFloat16 : torch::kHalf));
      },
      {"BFloat16[4]", "Half[4]"});
}

TEST(Disagreement, AnotherOperation) {
  expect_odd(
      [](const Group& group, bool odd, const at::Tensor& tensor) {
        odd ? group.broadcast("a", tensor) : group.sum("a", tensor);
      },
      {"broadcast \"a\" Float[4] from 0", "sum \"a\""});
}

TEST(Disagreement, AnotherSourceOfABroadcast) {
  expect_odd(
      [](const Group& group, bool odd, const at::Tensor& tensor) {
        group.broadcast("a", tensor, odd ? 1 : 0);
      },
      {"from 1", "from 0"});
}

TEST(Disagreement, ACallThatOneRankSkips) {
  expect_odd(
      [](const Group& group, bool odd, const at::Tensor& tensor) {
        if (!odd) {
          group.sum("a", tensor);
        }
        group.sum("b", tensor);
      },
      {"sum \"b\"", "sum \"a\""});
}

TEST(Disagreement, AnotherNumberOfBucketsOrOtherBuckets) {
  expect_odd(
      [](const Group& group, bool odd, const at::Tensor& tensor) {
        ReducerOptions options;
        options.bucket_bytes = odd ? 1 : 1 << 20;
        SumReducer reducer(group, options);
        reducer.add("first", Partial(tensor.narrow(0, 0, 2)));
        reducer.add("second", Partial(tensor.narrow(0, 2, 2)));
        reducer.reduce();
      },
      {"sum \"first\" Float[2], \"second\" Float[2]"});
}

TEST(Disagreement, ClippingByAnotherNorm) {
  const auto clip = [](const Group& group, double max_norm, double type) {
    const auto parameter = torch::zeros({2}, torch::requires_grad());
    parameter.mutable_grad() = torch::ones({2});
    ClipOptions options;
    options.norm_type = type;
    clip_grad_norm({{{parameter}, group}}, max_norm, group, options);
  };
  expect_odd(
      [&](const Group& group, bool odd, const at::Tensor&) { clip(group, 1, odd ? 3 : 2); },
      {"norm_type 3, max_norm 1", "norm_type 2, max_norm 1"});
  expect_odd(
      [&](const Group& group, bool odd, const at::Tensor&) { clip(group, odd ? 1 : 2, 2); },
      {"norm_type 2, max_norm 1", "norm_type 2, max_norm 2"});
}

TEST(Disagreement, AParameterThatOneRankDoesNotHaveIsNamed) {
  expect_odd(
      [](const Group& group, bool odd, const at::Tensor&) {
        const auto own = torch::ones({2}, torch::requires_grad()),
                   extra = torch::ones({3}, torch::requires_grad());
        SumReducer reducer(group);
        reducer.add_gradients({{"own", own}});
        if (!odd) {
          reducer.add_gradients({{"extra", extra}});
        }
        reducer.reduce();
      },
      {"\"own\" Float[2], \"extra\" Float[3]"});
}

TEST(Disagreement, OfManyTensorsTheOneThatDiffersIsShown) {
  expect_ranks(3, [](World& world) {
    SumReducer reducer(world.all());
    for (int i = 0; i < 200; ++i) {
      const int64_t size = i == 77 && world.rank() == 1 ? 3 : 2;
      reducer.add("weight " + std::to_string(i), Partial(torch::ones({size})));
    }
    const auto text = error_of([&] { reducer.reduce(); });
    RANK_EXPECT_TEXT(
        text,
        "rank 1 would sum ..., \"weight 77\" Float[3] ...",
        "ranks 0 and 2 would sum ..., \"weight 77\" Float[2] ...");
    RANK_EXPECT(text.size() < 400);
  });
}

TEST(Disagreement, AComplaintOfOneRankIsRaisedByAll) {
  expect_ranks(3, [](World& world) {
    const auto text = error_of(
        [&] { world.all().agree("go", "on", world.rank() == 2 ? "out of data" : ""); });
    RANK_EXPECT_TEXT(text, "rank 2: out of data");
    RANK_EXPECT(!testing::contains(text, "rank 1:"));
  });
}

TEST(Disagreement, OfTwoThatDifferBothMayBeWrong) {
  expect_ranks(2, [](World& world) {
    try {
      world.all().barrier(world.rank() == 0 ? "odd" : "even");
    } catch (const CollectiveError& error) {
      RANK_EXPECT_TEXT(
          error.what(), "rank 0 would agree on \"odd\"", "rank 1 would agree on \"even\"");
      RANK_EXPECT((error.ranks() == std::vector<int>{0, 1}));
      return;
    }
    RANK_EXPECT(!"raised");
  });
}

// ---- a rank that is gone

TEST(Absence, ARankThatEndsIsNamed) {
  const auto ends = run_ranks(
      3,
      [](World& world) {
        const auto all = world.all();
        all.barrier("start");
        if (world.rank() == 1) {
          ::raise(SIGKILL);
        }
        const auto tensor = torch::ones({2});
        const auto text = error_of([&] { all.sum("a", tensor); });
        RANK_EXPECT_TEXT(text, "rank 1 did not come within 1500 ms", "sum \"a\"");
        RANK_EXPECT(same_bits(tensor, torch::ones({2})));
      },
      with_timeout(1500));
  EXPECT_EQ(ends[1].signal, SIGKILL);
  EXPECT_EQ(ends[0].error + ends[2].error, "");
}

TEST(Absence, ACallThatOneRankSkipsAtTheEnd) {
  const auto ends = run_ranks(
      3,
      [](World& world) {
        const auto all = world.all();
        all.barrier("start");
        if (world.rank() == 2) {
          return;
        }
        RANK_EXPECT_TEXT(error_of([&] { all.barrier("end"); }), "rank 2 did not come");
      },
      with_timeout(1500));
  for (const auto& end : ends) {
    EXPECT_EQ(end.error, "");
  }
}

// Whether it returns or raises: nobody waits until the timeout, which is longer than a test may
// take.
TEST(Ended, ARankWhoseProcessEndsIsNamedAtOnce) {
  for (const bool raises : {false, true}) {
    const auto ends = run_ranks(
        3,
        [&](World& world) {
          const auto all = world.all();
          all.barrier("start");
          if (world.rank() == 2) {
            raises ? throw std::runtime_error("out of data") : void();
            return;
          }
          const auto tensor = torch::ones({2});
          const auto text = error_of([&] { all.sum("a", tensor); });
          RANK_EXPECT_TEXT(
              text,
              "rank 2 did not come within",
              "rank 2 has ended",
              "look at the output of rank 2");
          RANK_EXPECT(same_bits(tensor, torch::ones({2})));
        },
        with_timeout(1000 * 3600));
    EXPECT_EQ(ends[0].error + ends[1].error, "");
    EXPECT_EQ(ends[2].error, raises ? "out of data" : "");
  }
}

TEST(Ended, OneThatHasComeToACallBeforeItEndedIsNotMissed) {
  expect_ranks(3, [](World& world) {
    const auto all = world.all();
    const auto tensor = torch::ones({2});
    auto pending = all.sum_async("a", tensor);
    if (world.rank() == 2) {
      pending.wait();
      return;
    }
    const auto pair = world.group("pair", {0, 1});
    pair.barrier("still here");
    pending.wait();
    RANK_EXPECT(same_bits(tensor, torch::full({2}, 3.0)));
  });
}

// How a call ended: who was named, and after how long.
struct Ended {
  std::string text;
  std::vector<int> ranks;
  std::chrono::milliseconds took{0};
};

Ended end_of(const std::function<void()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  Ended end;
  try {
    call();
  } catch (const CollectiveError& error) {
    end.text = error.what();
    end.ranks = error.ranks();
  }
  end.took = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - begin);
  return end;
}

constexpr std::chrono::milliseconds kGivenUpBy{2000};  // after the timeout

// One that comes when another has given up just now: all name it, and nobody begins the call.
class Lateness : public ::testing::TestWithParam<int> {};

TEST_P(Lateness, ByTheTimeoutIsNamedByAll) {
  constexpr std::chrono::milliseconds timeout{1000};
  const std::chrono::milliseconds after(GetParam());
  expect_ranks(
      3,
      [&](World& world) {
        const auto all = world.all();
        const auto tensor = torch::ones({2});
        all.barrier("start");
        if (world.rank() >
            0) {  // the fault itself: rank 1 comes a little later than rank 0, and rank 2 too late
          std::this_thread::sleep_for(
              world.rank() == 1 ? std::chrono::milliseconds(300) : timeout + after);
        }
        const auto end = end_of([&] { all.sum("a", tensor); });
        if (end.text.empty()) {  // it was in time after all: then for everybody
          RANK_EXPECT(same_bits(tensor, torch::full({2}, 3.0)));
          return;
        }
        RANK_EXPECT_TEXT(end.text, "rank 2 did not come within 1000 ms");
        RANK_EXPECT(end.ranks == std::vector<int>{2});
        RANK_EXPECT(end.took <= timeout + kGivenUpBy);
        RANK_EXPECT(same_bits(tensor, torch::ones({2})));
      },
      with_timeout(static_cast<int>(timeout.count())));
}

INSTANTIATE_TEST_SUITE_P(Milliseconds, Lateness, ::testing::Values(-30, 0, 30, 100, 400));

// Rank 3 is gone; 2 waits for it, 1 for 2 and 0 for 1, each in a group of their own.
TEST(Absence, WhoWaitsElsewhereIsNotToBlame) {
  const auto ends = run_ranks(
      4,
      [](World& world) {
        const int rank = world.rank();
        std::vector<Group> groups;  // with the rank before, and the one after
        for (const int first : {rank - 1, rank}) {
          if (first >= 0 && first < 3) {
            groups.push_back(world.group("from " + std::to_string(first), {first, first + 1}));
          }
        }
        world.all().barrier("start");
        if (rank == 3) {
          ::raise(SIGKILL);
        }
        const auto end = end_of([&] { groups.back().barrier("next"); });
        RANK_EXPECT_TEXT(end.text, "did not come within 1500 ms");
        RANK_EXPECT(end.ranks == std::vector<int>{3});
        RANK_EXPECT(end.took <= std::chrono::milliseconds(1500) + kGivenUpBy);
      },
      with_timeout(1500));
  EXPECT_EQ(ends[3].signal, SIGKILL);
  EXPECT_EQ(ends[0].error + ends[1].error + ends[2].error, "");
}

// Rank 1 has raised for rank 2, and has ended, when rank 0 misses it.
TEST(Absence, WhoHasEndedForAnErrorElsewhereIsNotToBlame) {
  const auto ends = run_ranks(
      3,
      [](World& world) {
        const auto all = world.all();
        const auto pair = world.rank() == 0 ? Group::alone("none") : world.group("pair", {1, 2});
        all.barrier("start");
        if (world.rank() == 2) {
          ::raise(SIGKILL);
        }
        if (world.rank() == 1) {
          RANK_EXPECT(end_of([&] { pair.barrier("pair"); }).ranks == std::vector<int>{2});
          ::_exit(7);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // its own work
        const auto end = end_of([&] { all.barrier("end"); });
        RANK_EXPECT_TEXT(
            end.text, "ranks 1 and 2 did not come", "rank 1 has failed elsewhere: [pair]");
        RANK_EXPECT(end.ranks == std::vector<int>{2});
      },
      with_timeout(1500));
  EXPECT_EQ(ends[0].error, "");
  EXPECT_EQ(ends[1].exit_code, 7);
}

TEST(Absence, ARankThatEndsBeforeAGroupIsMadeIsNamed) {
  const auto ends = run_ranks(
      3,
      [](World& world) {
        world.all().barrier("start");
        if (world.rank() == 2) {
          ::raise(SIGKILL);
        }
        const auto end = end_of([&] { world.group("later", {0, 1, 2}); });
        RANK_EXPECT_TEXT(end.text, "make group \"later\"", "rank 2 did not come within 1000 ms");
        RANK_EXPECT(end.ranks == std::vector<int>{2});
        RANK_EXPECT(end.took <= std::chrono::milliseconds(1000) + kGivenUpBy);
        // It stays so.
        RANK_EXPECT_EQ(end_of([&] { world.group("later", {0, 1, 2}); }).text, end.text);
      },
      with_timeout(1000));
  EXPECT_EQ(ends[0].error + ends[1].error, "");
}

// Its threads were stopped as well: it is not the store that did not answer.
TEST(Absence, WhoWasStoppedItselfBlamesTheOneThatDidNotCome) {
  const auto ends = run_ranks(
      2,
      [](World& world) {
        const auto all = world.all();
        all.barrier("start");
        const pid_t self = ::getpid();
        if (world.rank() == 1) {
          ::raise(SIGKILL);
        }
        const pid_t helper = ::fork();
        if (helper == 0) {  // the fault itself: longer than anybody waits
          ::kill(self, SIGSTOP);
          ::sleep(5);
          ::kill(self, SIGCONT);
          ::_exit(0);
        }
        const auto end = end_of([&] { all.barrier("end"); });
        ::waitpid(helper, nullptr, 0);
        RANK_EXPECT_TEXT(end.text, "rank 1 did not come within 1000 ms");
        RANK_EXPECT(end.ranks == std::vector<int>{1});
      },
      with_timeout(1000));
  EXPECT_EQ(ends[0].error, "");
}

// The same for a stop after which the store had little time left to answer in.
TEST(Absence, WhoWasStoppedForAShortTimeDoesNotBlameTheStore) {
  const auto ends = run_ranks(
      2,
      [](World& world) {
        const auto all = world.all();
        all.barrier("start");
        const pid_t self = ::getpid();
        if (world.rank() == 1) {
          ::raise(SIGKILL);
        }
        const pid_t helper = ::fork();
        if (helper == 0) {  // the fault itself: until shortly after the store should have answered
          ::kill(self, SIGSTOP);
          ::usleep(3000 * 1000);
          ::kill(self, SIGCONT);
          ::_exit(0);
        }
        const auto end = end_of([&] { all.barrier("end"); });
        ::waitpid(helper, nullptr, 0);
        RANK_EXPECT_TEXT(end.text, "rank 1 did not come within 1000 ms");
        RANK_EXPECT(end.ranks == std::vector<int>{1});
      },
      with_timeout(1000));
  EXPECT_EQ(ends[0].error, "");
}

// The store's own warnings ask a name server who it is, which takes as long as that takes to
// answer.
TEST(Absence, IsToldInTheErrorAlone) {
  const auto ends = run_ranks(
      2,
      [](World& world) {
        world.all().barrier("start");
        if (world.rank() == 1) {
          ::raise(SIGKILL);
        }
        std::FILE* const written = std::tmpfile();
        ::dup2(::fileno(written), STDERR_FILENO);
        RANK_EXPECT_TEXT(
            error_of([&] { world.all().barrier("end"); }), "rank 1 did not come within 1000 ms");
        RANK_EXPECT_EQ(::lseek(STDERR_FILENO, 0, SEEK_END), 0);
      },
      with_timeout(1000));
  EXPECT_EQ(ends[0].error, "");
  EXPECT_EQ(ends[1].signal, SIGKILL);
}

TEST(World, ASecondOneInTheSameProcessIsAWorldOfItsOwn) {
  expect_ranks(2, [](World& first) {
    const auto second = World::from_environment();
    const auto tensor = torch::ones({2});
    for (const auto& world : {first, second, first}) {
      world.all().sum("tensor", tensor);
    }
    RANK_EXPECT(same_bits(tensor, torch::full({2}, 8.0)));
  });
}

TEST(Group, OfAForkIsRefused) {
  expect_ranks(2, [](World& world) {
    const auto all = world.all();
    all.barrier("start");
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        all.barrier("in a child");
      } catch (const UsageError&) {
        ::_exit(7);
      }
      ::_exit(1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    RANK_EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    all.barrier("end");
  });
}

TEST(Group, ATimeoutOfNothingIsRefused) {
  RunOptions options;
  options.world.timeout = std::chrono::milliseconds(0);
  const auto ends = run_ranks(2, [](World& world) { world.all(); }, options);
  EXPECT_THAT(ends[0].error, ::testing::HasSubstr("a timeout of 0 ms. Fix: at least 1 ms"));
}

TEST(World, GroupsAreMadeSideBySide) {
  expect_ranks(3, [](World& world) {
    // Rank 0 begins with the pair that is last to come: 1 makes the other pair with 2 first.
    const auto with = [&](int other) {
      world.group("with " + std::to_string(other), {0, other}).barrier("made");
    };
    if (world.rank() == 0) {
      std::thread waits([&] { with(1); });
      with(2);
      waits.join();
    } else if (world.rank() == 2) {
      with(2);
      world.group("tell", {2, 1}).barrier("2 has met 0");
    } else {
      world.group("tell", {2, 1}).barrier("2 has met 0");
      with(1);
    }
  });
}

// Without a launcher rank 0 serves the store, and with it goes what ranks agree through.
void expect_host_is_named(int signal) {
  int port = 0;
  {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
    ::close(fd);
  }
  RunOptions options;
  options.patience = std::chrono::seconds(6);  // for one that is stopped
  const auto ends = run_ranks(
      3,
      [&](World& launched) {
        ::unsetenv("TORCHELASTIC_USE_AGENT_STORE");
        ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
        WorldOptions short_wait;
        short_wait.timeout = std::chrono::milliseconds(1500);
        std::optional<World> world(World::from_environment(short_wait));
        std::optional<Group> all(world->all());
        world->group("idle", {0, 1, 2}).barrier("start");
        Ended end;
        const auto barrier = [&](const char* name) {
          end = end.text.empty() ? end_of([&] { all->barrier(name); }) : end;
        };
        barrier("start");  // some may still be on their way out of it
        if (launched.rank() == 0) {
          ::raise(signal);
        }
        barrier("later");
        RANK_EXPECT_TEXT(end.text, "rank 0", "has ended or is stopped");
        RANK_EXPECT(end.ranks == std::vector<int>{0});
        RANK_EXPECT(end.took <= short_wait.timeout + kGivenUpBy);
        // Nor does one hang that makes another group.
        const auto later = end_of([&] { world->group("later", {0, 1, 2}); });
        RANK_EXPECT(later.ranks == std::vector<int>{0});
        RANK_EXPECT(later.took <= short_wait.timeout + kGivenUpBy);
        // To leave both groups, the one that was in no call too, takes no answer.
        RANK_EXPECT(end_of([&] { all.reset(), world.reset(); }).took <= kGivenUpBy);
        throw std::runtime_error("told");  // starts the patience
      },
      options);
  EXPECT_NE(ends[0].signal, 0);
  EXPECT_EQ(ends[1].error, "told");
  EXPECT_EQ(ends[2].error, "told");
}

TEST(Absence, TheRankThatHostsTheStoreIsKilled) {
  expect_host_is_named(SIGKILL);
}

TEST(Absence, TheRankThatHostsTheStoreIsStopped) {
  expect_host_is_named(SIGSTOP);
}

TEST(RunRanks, AnErrorOfARankIsItsEnd) {
  const auto ends = run_ranks(2, [](World& world) {
    if (world.rank() == 1) {
      throw std::runtime_error("no such file");
    }
  });
  EXPECT_EQ(ends[0].exit_code, 0);
  EXPECT_EQ(ends[1].exit_code, 1);
  EXPECT_EQ(ends[1].error, "no such file");
}

TEST(RunRanks, AnErrorWithoutATextIsAnErrorToo) {
  const auto ends = run_ranks(1, [](World&) { throw std::runtime_error(""); });
  EXPECT_EQ(ends[0].exit_code, 1);
}

TEST(RunRanks, WhatTakesTooLongIsKilled) {
  RunOptions options;
  options.timeout = std::chrono::milliseconds(500);
  const auto ends = run_ranks(1, [](World&) { ::pause(); }, options);
  EXPECT_EQ(ends[0].signal, SIGKILL);
}

TEST(World, AVariableThatIsMissingOrWrongIsNamed) {
  const auto refuses = [](const char* name, const char* value, const std::string& why) {
    ::setenv("RANK", "0", 1);
    ::setenv("WORLD_SIZE", "2", 1);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", "1", 1);
    value ? ::setenv(name, value, 1) : ::unsetenv(name);
    EXPECT_THAT(
        [] { World::from_environment(); },
        ::testing::ThrowsMessage<UsageError>(::testing::HasSubstr(why)));
  };
  refuses("RANK", nullptr, "RANK is not set");
  refuses("RANK", "2", "RANK is \"2\", not a number from 0 to 1");
  refuses("WORLD_SIZE", "many", "WORLD_SIZE is \"many\"");
  refuses("MASTER_PORT", "70000", "MASTER_PORT is \"70000\"");
}

// Addresses, as the kernel writes them, at which this process listens.
std::set<std::string> listening() {
  std::set<std::string> inodes;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(file.path(), gone).string();
    if (target.rfind("socket:[", 0) == 0) {
      inodes.insert(target.substr(8, target.size() - 9));
    }
  }
  std::set<std::string> addresses;
  for (const auto* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    std::getline(lines, line);  // titles
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::vector<std::string> word(std::istream_iterator<std::string>(words), {});
      if (word.at(3) == "0A" && inodes.count(word.at(9))) {
        addresses.insert(word.at(1).substr(0, word.at(1).find(':')));
      }
    }
  }
  return addresses;
}

TEST(World, NothingListensBeyondLoopback) {
  const std::set<std::string> loopback{"0100007F"};
  RunOptions options;
  std::set<std::string> parent;
  options.started = [&](const std::vector<int>&) { parent = listening(); };
  expect_ranks(
      2,
      [&](World& world) {
        world.all().barrier("connected");
        RANK_EXPECT(listening() == loopback);  // Gloo
      },
      options);
  EXPECT_EQ(parent, loopback);  // the store
  // Rank 0 serves the store where no launcher does.
  expect_ranks(1, [&](World&) {
    ::unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    ::setenv("MASTER_PORT", "0", 1);
    const auto own = World::from_environment();
    RANK_EXPECT(listening() == loopback);
  });
}

TEST(World, AGroupOfOtherRanksUnderTheSameNameIsRefused) {
  expect_ranks(3, [](World& world) {
    if (world.rank() == 2) {
      return;
    }
    world.group("pair", {0, 1});
    world.group("pair", {0, 1}).barrier("the same one");
    const auto refused = [](const std::function<void()>& call) {
      try {
        call();
      } catch (const UsageError&) {
        return true;
      }
      return false;
    };
    RANK_EXPECT(refused([&] { world.group("pair", {1, 0}); }));
    RANK_EXPECT(refused([&] { world.group("without me", {2}); }));
  });
}

}  // namespace
}  // namespace retape::dist
