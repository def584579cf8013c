// GradCheck with the ranks of one pool, who all have one tensor: what each must call and bring, and
// when the self-test shows something.
#include "dist/ranks.h"

#include <retape/dist/gradcheck.h>
#include <retape/dist/row_random.h>

#include <algorithm>

namespace retape::dist {
namespace {

using testing::contains;
using testing::expect_ranks;
using torch::Tensor;

constexpr int64_t kRows = 12;

Tensor data(const Case& c, RowRange rows) {
  return row_uniform(c.seed, "data", rows, {4}, c.dtype);
}

Outcome mean(const Case& c) {
  return {{{"x", c.terms.at("fit") * data(c, {0, kRows}).mean(0)}}, {}, {}};
}

GradCheckOptions mean_options(std::vector<int> members) {
  GradCheckOptions given;
  given.terms = {{"fit"}};
  given.topologies = {{"pool", Topology(kRows, {{"ranks", std::move(members)}})}};
  given.dtypes.clear();
  given.ragged = false;
  given.mutations = false;
  return given;
}

// The mean by ranks. `counted` is called with the number of rows, before the sum.
class MeanByRanks {
 public:
  MeanByRanks(const Group& group, std::function<void(int64_t)> counted)
      : group_(group),
        counted_(std::move(counted)) {}

  Outcome operator()(const Case& c) const {
    const auto rows = c.topology.pool("ranks").shards[group_.index()];
    const auto count = count_global("rows", rows.size(), group_);
    counted_(count.value());
    const auto part =
        (c.terms.at("fit") * normalize(data(c, rows).sum(0), count).value()).contiguous();
    SumReducer reducer(group_);
    reducer.add("x", Partial(part));
    reducer.reduce();
    return {{{"x", part}}, {}, {}};
  }

 private:
  const Group& group_;
  std::function<void(int64_t)> counted_;
};

TEST(GradCheckOnePool, AMutantThatRaisesIsNoticedAndTheOthersFollow) {
  expect_ranks(2, [](World& world) {
    auto given = mean_options({0, 1});
    given.mutations = true;
    const auto group = world.group("ranks", {0, 1});
    const auto count_is_known = [](int64_t rows) {
      if (rows > kRows) {
        throw std::out_of_range("too many rows");
      }
    };
    const auto report =
        GradCheck(world.all(), mean, MeanByRanks(group, count_is_known), given).run();
    RANK_EXPECT_EQ(report.exit_code(), 0);
    if (world.rank() == 0) {
      RANK_EXPECT_EQ(report.mutants.size(), 8u);
      RANK_EXPECT_EQ(report.killed(), 8);
      RANK_EXPECT_EQ(report.mutants[1].reason, "rank 0 raised: too many rows");
    }
  });
}

TEST(GradCheckOnePool, AMutantThatBreaksGroupsEndsTheSelfTest) {
  expect_ranks(2, [](World& world) {
    auto given = mean_options({0, 1});
    given.mutations = true;
    const auto group = world.group("ranks", {0, 1});
    const auto another_call = [&](int64_t rows) {
      if (rows > kRows && world.rank() == 1) {
        group.sum("another", torch::ones({2}));
      }
    };
    const auto report = GradCheck(world.all(), mean, MeanByRanks(group, another_call), given).run();
    RANK_EXPECT_EQ(report.exit_code(), 6);
    if (world.rank() == 0) {
      RANK_EXPECT_EQ(report.mutants.size(), 2u);
      RANK_EXPECT_TEXT(report.text(), "the self-test ended with 6 mutants left: a rank raised");
    }
  });
}

// Where no replica could be counted twice, and where that would change nothing, there is nothing to
// notice.
TEST(GradCheckOnePool, AMutantThatCountsReplicasIsLeftOutWhereThereAreNone) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const auto clipped =
      [](Outcome outcome, const Group& everyone, const Group& replicas, double type) {
        const auto parameter = torch::zeros({4}, torch::dtype(torch::kDouble).requires_grad(true));
        parameter.mutable_grad() = outcome.gradients.at("x").clone();
        ClipOptions options;
        options.norm_type = type;
        outcome.norms["all"] = clip_grad_norm({{{parameter}, replicas}}, 1.0, everyone, options);
        return outcome;
      };
  expect_ranks(2, [&](World& world) {
    const auto group = world.group("ranks", {0, 1}), self = Group::alone("self", world.rank());
    auto given = mean_options({0, 1});
    given.mutations = true;
    // Replicas; the same, and the largest alone; parts that each rank has for itself.
    const std::vector<std::tuple<Group, double, int>> expected{
        {group, 2, 9}, {group, kInf, 8}, {self, 2, 8}};
    for (const auto& [replicas, type, mutants] : expected) {
      const double parts = replicas.size() == 1 ? std::sqrt(2) : 1;
      const auto reference = [&, type = type](const Case& c) {
        auto outcome = clipped(mean(c), self, self, type);
        outcome.norms["all"] *= parts;
        return outcome;
      };
      const auto step = [&, replicas = replicas, type = type](const Case& c) {
        return clipped(MeanByRanks(group, [](int64_t) {})(c), group, replicas, type);
      };
      const auto report = GradCheck(world.all(), reference, step, given).run();
      RANK_EXPECT_EQ(report.exit_code(), 0);
      RANK_EXPECT(
          world.rank() != 0 ||
          (report.killed() == mutants && static_cast<int>(report.mutants.size()) == mutants));
    }
  });
}

// Zeros stay zeros, whatever a mutant makes of them: as of a parameter that is not used.
Outcome with_dead(Outcome outcome) {
  for (const auto* name : {"dead.weight", "dead.bias"}) {
    outcome.gradients[name] = torch::zeros({2}, torch::kDouble);
  }
  return outcome;
}

TEST(GradCheckOnePool, TheSelfTestSkipsWhatMayBeDead) {
  expect_ranks(2, [](World& world) {
    const auto group = world.group("ranks", {0, 1});
    const auto reference = [](const Case& c) { return with_dead(mean(c)); };
    const auto one_by_one = [&](const Case& c) {
      auto outcome = with_dead(MeanByRanks(group, [](int64_t) {})(c));
      SumReducer reducer(group);
      reducer.add("dead.weight", Partial(outcome.gradients["dead.weight"]));
      reducer.add("dead.bias", Partial(outcome.gradients["dead.bias"]));
      reducer.reduce();
      return outcome;
    };
    const auto in_a_bucket = [&](const Case& c) {
      const Partial bucket(torch::zeros({4}, torch::kDouble));
      sum_async("dead.weight to dead.bias", bucket, group, "dead.weight, dead.bias").wait();
      return with_dead(MeanByRanks(group, [](int64_t) {})(c));
    };
    for (const GradCheck::Step& step :
         {GradCheck::Step(one_by_one), GradCheck::Step(in_a_bucket)}) {
      for (const auto& declared :
           {std::vector<std::string>{"dead.weight", "dead.bias"}, {"dead.*"}}) {
        auto given = mean_options({0, 1});
        given.mutations = true;
        given.may_be_dead = declared;
        const auto report = GradCheck(world.all(), reference, step, given).run();
        RANK_EXPECT_EQ(report.exit_code(), 0);
        if (world.rank() == 0) {
          RANK_EXPECT_EQ(report.mutants.size(), 8u);
          RANK_EXPECT_TEXT(
              report.text(),
              "note: the self-test skips sums of tensors that may be dead: \"dead.weight");
        }
      }
    }
  });
}

TEST(GradCheckOnePool, ASelfTestThatSkipsEverySumProvesNothing) {
  expect_ranks(2, [](World& world) {
    const auto group = world.group("ranks", {0, 1});
    const auto sums_dead = [&](const Case& c) {
      group.sum("dead.bias", torch::zeros({2}, torch::kDouble));
      return with_dead(mean(c));
    };
    auto given = mean_options({0, 1});
    given.mutations = true;
    given.may_be_dead = {"dead.*"};
    const auto report =
        GradCheck(
            world.all(), [](const Case& c) { return with_dead(mean(c)); }, sums_dead, given)
            .run();
    RANK_EXPECT_EQ(report.exit_code(), 6);
    RANK_EXPECT(
        world.rank() != 0 ||
        contains(report.text(), "vacuous: every sum through retape::dist is of tensors"));
  });
}

TEST(GradCheckOnePool, AReplicaWithoutTheGradientIsDifferent) {
  expect_ranks(3, [](World& world) {
    const auto given = mean_options({0, 1, 2});
    const auto held_by = [&](int rank) {
      return [&world, rank](const Case& c) {
        return world.rank() == rank ? mean(c) : Outcome{{{"x", Tensor()}}, {}, {}};
      };
    };
    for (const int rank : {0, 1}) {
      const auto report = GradCheck(world.all(), mean, held_by(rank), given).run();
      RANK_EXPECT_EQ(report.exit_code(), 1);
      if (world.rank() == 0) {
        RANK_EXPECT_EQ(report.rows.size(), 1u);
        RANK_EXPECT_EQ(
            report.rows[0].reason,
            rank == 0 ? "ranks 1, 2 have none, and rank 0 has one: replicas drift apart"
                      : "ranks 0, 2 have none, and rank 1 has one: replicas drift apart");
      }
    }
  });
}

TEST(GradCheckOnePool, NoneBesideZerosAndNamesThatARankLeavesOutAreEqual) {
  expect_ranks(2, [](World& world) {
    auto given = mean_options({0, 1});
    given.may_be_dead = {"dead"};
    const auto zeros = [](Outcome outcome) {
      outcome.gradients["dead"] = torch::zeros({2}, torch::kDouble);
      return outcome;
    };
    const auto some = [&](const Case& c) {
      return world.rank() == 0 ? zeros(mean(c)) : Outcome{{{"dead", Tensor()}}, {}, {}};
    };
    const auto report =
        GradCheck(world.all(), [&](const Case& c) { return zeros(mean(c)); }, some, given).run();
    RANK_EXPECT_EQ(report.exit_code(), 0);
  });
}

TEST(GradCheckOnePool, WhereEveryRankHoldsAllANameThatOneLeavesOutIsDifferent) {
  expect_ranks(3, [](World& world) {
    auto given = mean_options({0, 1, 2});
    given.replicated = true;
    const auto first_of = [&](const Case& c) { return world.rank() == 0 ? mean(c) : Outcome{}; };
    const auto report = GradCheck(world.all(), mean, first_of, given).run();
    RANK_EXPECT_EQ(report.exit_code(), 1);
    if (world.rank() == 0) {
      RANK_EXPECT_EQ(report.rows.size(), 1u);
      RANK_EXPECT_TEXT(report.rows[0].reason, "ranks 1 and 2 do not return it, and rank 0 does");
    }
    RANK_EXPECT_EQ(GradCheck(world.all(), mean, mean, given).run().exit_code(), 0);
  });
}

TEST(GradCheckOnePool, WhereEveryRankHoldsAllNormsAndParametersMustBeOnEachAndLossesAreNoted) {
  expect_ranks(2, [](World& world) {
    auto given = mean_options({0, 1});
    given.replicated = true;
    given.steps = 1;
    const auto all = [](const Case& c) {
      auto outcome = mean(c);
      outcome.parameters["x"] = torch::full({4}, c.steps, torch::kDouble);
      outcome.norms["all"] = outcome.losses["fit"] = 1.5;
      return outcome;
    };
    const auto without = [&](const Case& c) {
      auto outcome = all(c);
      return world.rank() == 0 ? outcome : Outcome{outcome.gradients, {}, {}};
    };
    const auto report = GradCheck(world.all(), all, without, given).run();
    RANK_EXPECT_EQ(report.exit_code(), 1);
    if (world.rank() == 0) {
      for (const auto& row : report.rows) {
        const bool held_by_all = row.what == "norm" || row.what == "parameter";
        RANK_EXPECT_EQ(row.kind == Verdict::Kind::Different, held_by_all);
      }
      RANK_EXPECT_TEXT(report.text(), "note: rank 1 does not return loss \"fit\", and rank 0 does");
    }
  });
}

TEST(GradCheckOnePool, RanksThatReturnNothingAreNotedWhereRanksHoldDifferentThings) {
  expect_ranks(3, [](World& world) {
    const auto first_of = [&](const Case& c) { return world.rank() == 0 ? mean(c) : Outcome{}; };
    const auto report = GradCheck(world.all(), mean, first_of, mean_options({0, 1, 2})).run();
    RANK_EXPECT_EQ(report.exit_code(), 0);
    if (world.rank() == 0) {
      RANK_EXPECT_TEXT(
          report.text(),
          "note: ranks 1 and 2 return nothing (in pool): what is there was not compared.");
    }
  });
}

// Each rank has names of its own, and more of them than ranks tell one another in one piece.
TEST(GradCheckOnePool, TensorsOfAWholeModelAreComparedWhicheverRankHasThem) {
  constexpr int64_t kBlocks = 60;
  const auto blocks = [](const Case& c, int64_t first, int64_t step, double fault) {
    Outcome outcome;
    for (int64_t i = first; i < kBlocks; i += step) {
      const auto name = "decoder.layers." + std::to_string(i) +
          ".self_attention.query_projection.weight";
      const auto wrong = i == kBlocks - 1 ? fault : 1.0;
      outcome.gradients[name] = wrong * c.terms.at("fit") *
          row_uniform(c.seed, name, {0, i + 1}, {3}, c.dtype).sum(0);
    }
    return outcome;
  };
  expect_ranks(3, [&](World& world) {
    for (const double fault : {1.0, 2.0}) {
      const auto by_one = [&](const Case& c) { return blocks(c, 0, 1, 1.0); };
      const auto by_ranks = [&](const Case& c) { return blocks(c, world.rank(), 3, fault); };
      const auto report = GradCheck(world.all(), by_one, by_ranks, mean_options({0, 1, 2})).run();
      RANK_EXPECT_EQ(report.exit_code(), fault == 1.0 ? 0 : 1);
      if (world.rank() == 0) {
        RANK_EXPECT_EQ(report.rows.size(), size_t{kBlocks});
        RANK_EXPECT_TEXT(
            report.text(),
            "note: ranks 0 and 1 do not return gradients \"decoder.layers.11.self_attention",
            " and 17 more, and rank 2 does (in pool)");
        RANK_EXPECT_EQ(
            std::count_if(
                report.rows.begin(),
                report.rows.end(),
                [](const GradRow& row) { return row.kind == Verdict::Kind::Different; }),
            fault == 1.0 ? 0 : 1);
      }
    }
  });
}

TEST(GradCheckOnePool, RanksOutsideATopologyAreNotCalled) {
  expect_ranks(3, [](World& world) {
    const auto step = [&](const Case& c) {
      RANK_EXPECT(world.rank() != 1);
      return mean(c);
    };
    RANK_EXPECT_EQ(GradCheck(world.all(), mean, step, mean_options({0, 2})).run().exit_code(), 0);
  });
}

TEST(GradCheckOnePool, MicrobatchesThatNoRankAsksForAreNoted) {
  expect_ranks(2, [](World& world) {
    auto given = mean_options({0, 1});
    given.microbatches = 3;
    const auto asked_by = [&](int rank) {
      return [&world, rank](const Case& c) {
        if (world.rank() == rank) {
          c.cut({0, kRows});
        }
        return mean(c);
      };
    };
    for (const int rank : {0, 1, 2}) {  // the last is nobody
      const auto report = GradCheck(world.all(), mean, asked_by(rank), given).run();
      RANK_EXPECT_EQ(report.exit_code(), 0);
      const bool noted = contains(
          report.text(), "microbatches is 3, and no rank has asked for them");
      RANK_EXPECT(world.rank() != 0 || noted == (rank == 2));
    }
  });
}

TEST(GradCheckOnePool, WhereNothingIsSummedHereTheSelfTestProvesNothing) {
  expect_ranks(2, [](World& world) {
    auto given = mean_options({0, 1});
    RANK_EXPECT_EQ(GradCheck(world.all(), mean, mean, given).run().exit_code(), 0);
    given.mutations = true;
    const auto report = GradCheck(world.all(), mean, mean, given).run();
    RANK_EXPECT_EQ(report.exit_code(), 6);
    if (world.rank() == 0) {
      RANK_EXPECT_TEXT(
          report.text(),
          "vacuous: nothing was summed through retape::dist",
          "Fix: SumHook",
          "--no-self-test");
    }
  });
}

}  // namespace
}  // namespace retape::dist
