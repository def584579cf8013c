// GradCheck with ranks: a right step passes and kills every mutant; wrong ones are named.
#include "dist/ranks.h"

#include <retape/dist/gradcheck.h>
#include <retape/dist/row_random.h>

#include <numeric>

namespace retape::dist {
namespace {

using testing::contains;
using testing::expect_ranks;
using torch::Tensor;
using Kind = Verdict::Kind;

constexpr int64_t kRows = 12;
constexpr int64_t kWidth = 4;

std::vector<int> ranks(int first, int count) {
  std::vector<int> all(count);
  std::iota(all.begin(), all.end(), first);
  return all;
}

NamedTopology pools(int a, int b) {
  return {
      std::to_string(a) + "," + std::to_string(b),
      Topology(kRows, {{"a", ranks(0, a)}, {"b", ranks(a, b)}})};
}

// What can be wrong with the step of ranks.
enum class Fault {
  None,
  Average,     // of pool a's gradients, in place of their sum
  OwnMean,     // noise: mean over the rank's own rows, averaged
  OwnTotal,    // usage: logarithm of the rank's own sum
  Everywhere,  // penalty: by every rank
  OwnNumbers,  // noise: a generator of the rank's own
  Drift,       // one replica is one bit off
  Replicas,    // norm: every replica counts
  MicroMeans,  // fit: mean over each microbatch, averaged
  WrongWay,    // in float32 the optimizer goes up
};

struct Model {
  Tensor w, v;

  explicit Model(const Case& c)
      : w(torch::linspace(0.5, 2, kWidth, c.dtype).set_requires_grad(true)),
        v(torch::linspace(-1, 2, kWidth, c.dtype).set_requires_grad(true)) {}
};

Tensor data(const Case& c, RowRange rows) {
  return row_uniform(c.seed, "data", rows, {kWidth}, c.dtype);
}

Tensor tokens(const Case& c, RowRange rows) {
  return (torch::arange(rows.begin, rows.end) % 3 + 1).to(c.dtype);
}

Tensor noise(const Case& c, RowRange rows) {
  return row_uniform(c.seed, "noise", rows, {kWidth}, c.dtype);
}

Tensor usage(const Model& m, const Tensor& x) {
  return torch::sigmoid(x * m.w).sum(0);
}

Tensor usage_loss(const Tensor& total) {
  return (total * torch::log2(1 + total)).sum() / kRows;
}

void step_parameter(Tensor& parameter, double rate = 1e-3) {
  const torch::NoGradGuard no_grad;
  parameter.sub_(parameter.grad(), rate);
  parameter.mutable_grad().reset();
}

Outcome reference(const Case& c) {
  Model m(c);
  Outcome outcome;
  for (int step = 0; step < std::max(1, c.steps); ++step) {
    const RowRange all{0, kRows};
    const auto x = data(c, all);
    const auto t = tokens(c, all);
    const auto fit = (t * (x.matmul(m.w) - 1).square()).sum() / t.sum();
    const auto loss = c.terms.at("fit") * fit + c.terms.at("usage") * usage_loss(usage(m, x)) +
        c.terms.at("penalty") * m.w.square().sum() +
        c.terms.at("noise") * noise(c, all).matmul(m.v).square().sum() / kRows;
    loss.backward();
    outcome.gradients = {{"w", m.w.grad().clone()}, {"v", m.v.grad().clone()}};
    outcome.norms["all"] = torch::nn::utils::clip_grad_norm_({m.w, m.v}, 1.0);
    if (c.steps > 0) {
      step_parameter(m.w);
      step_parameter(m.v);
    }
  }
  outcome.parameters = {{"w", m.w.detach()}, {"v", m.v.detach()}};
  return outcome;
}

class Ranks {
 public:
  Ranks(World& world, Fault fault) : world_(world), fault_(fault) {}

  Outcome operator()(const Case& c) const {
    const auto& topology = c.topology;
    const auto& a = topology.pool("a");
    const bool in_a = a.index_of(world_.rank()) >= 0;
    const auto& pool = in_a ? a : topology.pool("b");
    const auto sizes = std::to_string(a.size()) + "," + std::to_string(topology.pool("b").size());
    const auto group = world_.group(pool.name + " of " + sizes, pool.ranks);
    const auto everyone = world_.group("all of " + sizes, ranks(0, topology.world_size()));
    const auto rows = pool.shards[pool.index_of(world_.rank())];
    Model m(c);
    Outcome outcome;
    for (int step = 0; step < std::max(1, c.steps); ++step) {
      auto& own = in_a ? m.w : m.v;
      in_a ? backward_a(c, m, group, rows) : backward_b(c, m, group, rows);
      SumReducer reducer(group, {25 << 20, c.wire, false});
      reducer.add(in_a ? "w" : "v", Partial(own.grad()));
      reducer.reduce();
      break_gradient(own, group);
      outcome.gradients = {{in_a ? "w" : "v", own.grad().clone()}};
      outcome.norms["all"] = clip(own, group, everyone);
      if (c.steps > 0) {
        step_parameter(own, fault_ == Fault::WrongWay && c.dtype == torch::kFloat ? -1e-3 : 1e-3);
        outcome.parameters = {{in_a ? "w" : "v", own.detach()}};
      }
    }
    return outcome;
  }

 private:
  void backward_a(const Case& c, Model& m, const Group& group, RowRange rows) const {
    const auto x = data(c, rows);
    const auto t = tokens(c, rows);
    auto loss = m.w.sum() * 0;
    if (const auto on = c.terms.at("fit"); on != 0) {
      const auto mine = t.sum().item<int64_t>();
      const auto count = count_global("tokens", mine, group);
      const auto parts = c.cut(rows);
      for (const auto& part : parts) {
        const auto here = tokens(c, part);
        const auto sum = (here * (data(c, part).matmul(m.w) - 1).square()).sum();
        const auto weight = fault_ == Fault::MicroMeans ? static_cast<double>(mine) /
                (here.sum().item<double>() * static_cast<double>(parts.size()))
                                                        : 1.0;
        (on * normalize(weight * sum, count).value()).backward();
      }
    }
    if (const auto on = c.terms.at("usage"); on != 0) {
      const auto own = usage(m, x);
      loss = loss +
          on * usage_loss(fault_ == Fault::OwnTotal ? own : global_residual("usage", own, group));
    }
    if (const auto on = c.terms.at("penalty"); on != 0) {
      const Replicated penalty(m.w.square().sum());
      loss = loss +
          on *
              (fault_ == Fault::Everywhere ? penalty.value()
                                           : contribute_once("penalty", penalty, group).value());
    }
    loss.backward();
  }

  void backward_b(const Case& c, Model& m, const Group& group, RowRange rows) const {
    auto loss = m.v.sum() * 0;
    if (const auto on = c.terms.at("noise"); on != 0) {
      auto drawn = noise(c, rows);
      if (fault_ == Fault::OwnNumbers) {
        torch::manual_seed(7);
        drawn = torch::rand({rows.size(), kWidth}, c.dtype);
      }
      const auto sum = drawn.matmul(m.v).square().sum();
      loss = loss +
          on *
              (fault_ == Fault::OwnMean
                   ? sum / static_cast<double>(rows.size() * group.size())
                   : normalize(sum, count_global("noise", rows.size(), group)).value());
    }
    loss.backward();
  }

  void break_gradient(Tensor& own, const Group& group) const {
    const torch::NoGradGuard no_grad;
    if (fault_ == Fault::Average && contains(group.name(), "a of")) {
      own.mutable_grad().div_(group.size());
    }
    if (fault_ == Fault::Drift && group.index() == 1 && own.grad()[0].item<double>() != 0) {
      own.mutable_grad()[0].mul_(1 + 4e-16);
    }
  }

  double clip(Tensor& own, const Group& group, const Group& everyone) const {
    if (fault_ == Fault::Replicas) {
      const auto square = own.grad().to(torch::kDouble).square().sum();
      everyone.sum("squares", square);
      return std::sqrt(square.item<double>());
    }
    return clip_grad_norm({{{own}, group}}, 1.0, everyone);
  }

  World& world_;
  Fault fault_;
};

GradCheckOptions options() {
  GradCheckOptions given;
  given.terms = {
      {"fit", 1.0}, {"usage", 0.5}, {"penalty", 0.3, {"w"}}, {"noise", 2.0, {"v"}, true}};
  given.topologies = {pools(1, 1), pools(3, 2), pools(2, 3)};
  given.steps = 3;
  given.seed = 5;
  return given;
}

// The few runs that show a fault.
GradCheckOptions short_options() {
  auto given = options();
  given.dtypes.clear();
  given.steps = 0;
  return given;
}

GradReport check(World& world, Fault fault, const GradCheckOptions& given) {
  return GradCheck(world.all(), reference, Ranks(world, fault), given).run();
}

const GradRow* find(
    const GradReport& report,
    const std::string& topology,
    const std::string& terms,
    const char* tensor) {
  for (const auto& row : report.rows) {
    if (row.topology == topology && row.dtype == "float64" && row.terms == terms &&
        row.tensor == tensor) {
      return &row;
    }
  }
  throw std::runtime_error(
      "no row " + topology + " " + terms + " " + tensor + " in " + report.text());
}

TEST(GradCheckRanks, ARightStepIsEqualAndEveryMutantIsKilled) {
  expect_ranks(5, [](World& world) {
    auto given = options();
    given.wire = torch::kBFloat16;
    const auto report = check(world, Fault::None, given);
    RANK_EXPECT_EQ(report.exit_code(), 0);
    if (world.rank() != 0) {
      RANK_EXPECT(report.rows.empty());
      return;
    }
    RANK_EXPECT_TEXT(
        report.text(), "equal: ", "5 topologies (1,1; 3,2; 2,3; 3,2, ragged; 3,2, empty)");
    for (const auto& row : report.rows) {
      RANK_EXPECT(row.dtype != "float64" || row.error < 1e-14);
    }
    RANK_EXPECT_EQ(report.mutated, "3,2");
    RANK_EXPECT(report.mutants.size() >= 20);
    RANK_EXPECT_EQ(report.kill_rate(), 1.0);
    // Each pool has a parameter of its own.
    RANK_EXPECT_EQ(report.notes.size(), 3u);
    RANK_EXPECT_TEXT(
        report.text(),
        "note: pool \"a\" does not return gradient \"v\", parameter \"v\", and pool \"b\" does (in "
        "1,1; ",
        "note: pool \"b\" does not return gradient \"w\", parameter \"w\", and pool \"a\" does (in "
        "1,1; ",
        "right if it does not hold them; what it holds of them was not compared.",
        "no microbatches were compared: microbatches is 1.");
  });
}

TEST(GradCheckRanks, AMutantHasTheRatioThatWasPredicted) {
  expect_ranks(5, [](World& world) {
    const auto report = check(world, Fault::None, short_options());
    int predicted = 0;
    for (const auto& mutant : report.mutants) {
      // Counts of tokens differ from rank to rank, so the ratio of a local count is no number.
      RANK_EXPECT(
          mutant.mutation != Mutation::LocalCount ||
          mutant.predicted.has_value() == (mutant.at.name == "noise"));
      if (mutant.predicted) {
        RANK_EXPECT_EQ(
            std::string(text(mutant.mutation)) + (mutant.as_predicted() ? " as predicted" : ""),
            std::string(text(mutant.mutation)) + " as predicted");
        ++predicted;
      }
    }
    RANK_EXPECT(world.rank() != 0 || predicted >= 12);
  });
}

TEST(GradCheckRanks, AnAverageIsNamedByTheSizeOfItsPool) {
  expect_ranks(5, [](World& world) {
    const auto report = check(world, Fault::Average, short_options());
    RANK_EXPECT_EQ(report.exit_code(), 1);
    if (world.rank() == 0) {
      const auto* row = find(report, "3,2", "fit", "w");
      RANK_EXPECT(std::abs(row->alpha - 1.0 / 3) < 1e-12 && row->residual < 1e-12);
      RANK_EXPECT_EQ(row->guesses.size(), 1u);
      RANK_EXPECT_EQ(row->guesses[0], "1 / n_a");
      RANK_EXPECT(find(report, "3,2", "noise", "v")->kind == Kind::Equal);
      RANK_EXPECT_TEXT(
          report.text(),
          "[3,2; float64; fit] gradient \"w\": off by 0.67, allowed 1e-12: 0.333333 times the "
          "reference: 1 / n_a",
          "(and so in 2 other runs)",
          "more, which these explain",
          "no self-test: with 3,2 ranks differ");
      RANK_EXPECT(!contains(report.text(), "norm \"all\""));  // it follows
    }
  });
}

TEST(GradCheckRanks, AReplicatedTermOnEveryRankIsNamedAndOthersAreNot) {
  expect_ranks(5, [](World& world) {
    const auto report = check(world, Fault::Everywhere, short_options());
    if (world.rank() == 0) {
      const auto* row = find(report, "3,2", "penalty", "w");
      RANK_EXPECT(std::abs(row->alpha - 3) < 1e-12);
      RANK_EXPECT_EQ(row->guesses[0], "n_a");
      RANK_EXPECT(find(report, "3,2", "fit", "w")->kind == Kind::Equal);
      RANK_EXPECT(find(report, "3,2", "all", "w")->kind == Kind::Different);
    }
  });
}

TEST(GradCheckRanks, AMeanOfMeansIsSeenOnlyWithRaggedShards) {
  expect_ranks(5, [](World& world) {
    auto given = short_options();
    auto report = check(world, Fault::OwnMean, given);
    RANK_EXPECT_EQ(report.exit_code(), 1);
    if (world.rank() == 0) {
      RANK_EXPECT(find(report, "3,2", "noise", "v")->kind == Kind::Equal);
      RANK_EXPECT_TEXT(
          find(report, "3,2, ragged", "noise", "v")->reason,
          "no factor explains it (alpha ",
          "only with ragged shards (3,2 is equal). Candidates: a mean of each rank's mean or");
    }
    given.ragged = false;
    given.mutations = false;
    report = check(world, Fault::OwnMean, given);
    RANK_EXPECT_EQ(report.exit_code(), 0);
    RANK_EXPECT(
        world.rank() != 0 || contains(report.text(), "shards of a, b are even in every topology"));
  });
}

TEST(GradCheckRanks, AMeanOfMicrobatchMeansIsSeenWithMicrobatches) {
  expect_ranks(5, [](World& world) {
    auto given = short_options();
    given.mutations = false;
    RANK_EXPECT_EQ(check(world, Fault::MicroMeans, given).exit_code(), 0);
    given.microbatches = 3;
    RANK_EXPECT_EQ(check(world, Fault::None, given).exit_code(), 0);
    const auto report = check(world, Fault::MicroMeans, given);
    RANK_EXPECT_EQ(report.exit_code(), 1);
    if (world.rank() == 0) {
      const auto* row = find(report, "3,2", "fit", "w");
      RANK_EXPECT(row->kind == Kind::Different && row->residual > 1e-3);
      RANK_EXPECT(find(report, "3,2", "noise", "v")->kind == Kind::Equal);
    }
  });
}

// Steps of a thousandth: the parameter is nearly the same, and has gone the wrong way.
TEST(GradCheckRanks, AnUpdateOfTheWrongSignIsSeenInProductionDtypes) {
  expect_ranks(5, [](World& world) {
    auto given = options();
    given.wire = torch::kBFloat16;
    given.mutations = false;
    RANK_EXPECT_EQ(check(world, Fault::None, given).exit_code(), 0);
    const auto report = check(world, Fault::WrongWay, given);
    RANK_EXPECT_EQ(report.exit_code(), 1);
    int wrong = 0;
    for (const auto& row : report.rows) {
      if (row.what == "parameter") {
        const bool production = row.dtype != "float64";
        RANK_EXPECT_EQ(row.kind == Kind::Different, production);
        RANK_EXPECT(!production || std::abs(row.alpha + 1) < 0.1);
        wrong += production;
      }
    }
    RANK_EXPECT(world.rank() != 0 || wrong == 20);  // w, v; with and without a wire; ragged, empty
  });
}

TEST(GradCheckRanks, AFunctionOfALocalSumIsNoFactor) {
  expect_ranks(5, [](World& world) {
    const auto report = check(world, Fault::OwnTotal, short_options());
    if (world.rank() == 0) {
      const auto* row = find(report, "3,2", "usage", "w");
      RANK_EXPECT(row->kind == Kind::Different && row->residual > 1e-6);
      RANK_EXPECT_TEXT(row->reason, "no factor explains it", "a rank's own sum");
    }
  });
}

TEST(GradCheckRanks, NumbersDrawnByRankAreExplained) {
  expect_ranks(5, [](World& world) {
    const auto report = check(world, Fault::OwnNumbers, short_options());
    if (world.rank() == 0) {
      RANK_EXPECT_TEXT(
          find(report, "3,2", "noise", "v")->reason, "draws random numbers", "row_random.h");
    }
  });
}

TEST(GradCheckRanks, ReplicasMustHaveTheSameBits) {
  expect_ranks(5, [](World& world) {
    const auto report = check(world, Fault::Drift, short_options());
    RANK_EXPECT_EQ(report.exit_code(), 1);
    if (world.rank() == 0) {
      const auto* row = find(report, "3,2", "fit", "w");
      RANK_EXPECT(row->kind == Kind::Different && row->error < 1e-14);
      RANK_EXPECT_EQ(row->reason, "rank 1 has not the bits that rank 0 has: replicas drift apart");
    }
  });
}

TEST(GradCheckRanks, ANormThatCountsReplicasIsDifferentAndGradientsAreNot) {
  expect_ranks(5, [](World& world) {
    const auto report = check(world, Fault::Replicas, short_options());
    if (world.rank() == 0) {
      const auto* row = find(report, "3,2", "penalty", "all");  // w only: held by three
      RANK_EXPECT_EQ(row->what, "norm");
      RANK_EXPECT_EQ(row->guesses.at(0), "sqrt(n_a)");
      RANK_EXPECT(find(report, "3,2", "all", "w")->kind == Kind::Equal);
    }
  });
}

TEST(GradCheckRanks, AtEqualSizesTheVerdictIsVacuousAndTheMutantLives) {
  expect_ranks(4, [](World& world) {
    auto given = short_options();
    given.topologies = {{"2,2", Topology(kRows, {{"a of 2,2", {0, 1}}, {"b of 2,2", {2, 3}}})}};
    const auto renamed = [&](const Case& c) {
      auto plain = c;
      plain.topology = pools(2, 2).topology;
      return Ranks(world, Fault::None)(plain);
    };
    const auto report = GradCheck(world.all(), reference, renamed, given).run();
    RANK_EXPECT_EQ(report.exit_code(), 6);
    if (world.rank() == 0) {
      RANK_EXPECT_TEXT(
          report.text(),
          "n_a of 2,2 and n_b of 2,2 are equal in every topology",
          "not noticed: other count (of b of 2,2) at count \"tokens\"",
          "has as many ranks as");
    }
  });
}

TEST(GradCheckRanks, ATermTooSmallToBeSeenIsVacuous) {
  expect_ranks(5, [](World& world) {
    auto given = short_options();
    given.mutations = false;
    given.terms[2].coefficient = 1e-9;
    RANK_EXPECT_EQ(check(world, Fault::None, given).exit_code(), 0);  // float64 sees it
    given.dtypes = {torch::kFloat};
    const auto report = check(world, Fault::None, given);
    RANK_EXPECT_EQ(report.exit_code(), 6);
    RANK_EXPECT(report.vacuous.empty());
    RANK_EXPECT(
        world.rank() != 0 ||
        contains(report.text(), "[1,1; float32; penalty] gradient \"w\": is "));
  });
}

TEST(GradCheckRanks, AStepThatKeepsStateIsNotJudged) {
  expect_ranks(5, [](World& world) {
    int calls = 0;
    const auto aging = [&](const Case& c) {
      auto outcome = Ranks(world, Fault::None)(c);
      if (world.rank() == 0 && ++calls > 25) {  // 5 topologies, each of 5 runs
        outcome.gradients.begin()->second.mul_(2);
      }
      return outcome;
    };
    const auto report = GradCheck(world.all(), reference, aging, short_options()).run();
    RANK_EXPECT_EQ(report.exit_code(), 6);
    RANK_EXPECT(world.rank() != 0 || contains(report.text(), "run again, it comes out different"));
  });
}

TEST(GradCheckRanks, AnExceptionOnOneRankRaisesOnAll) {
  auto run = testing::with_timeout(30000);
  expect_ranks(
      3,
      [](World& world) {
        auto given = short_options();
        given.topologies = {pools(2, 1)};
        const auto failing = [&](const Case&) -> Outcome {
          if (world.rank() == 1) {
            throw std::out_of_range("no such row");
          }
          return {};
        };
        std::string said;
        try {
          GradCheck(world.all(), reference, failing, given).run();
        } catch (const std::out_of_range& error) {
          said = error.what();
        } catch (const CollectiveError& error) {
          RANK_EXPECT_EQ(error.ranks().at(0), 1);
          said = error.what();
        }
        RANK_EXPECT_EQ(
            said,
            world.rank() == 1 ? "no such row"
                              : "[GradCheck] 2,1; float64; all: rank 1 raised: no such row");
      },
      run);
}

TEST(GradCheckRanks, ARankThatRaisesWhileOthersWaitForItLeavesNobodyHanging) {
  expect_ranks(
      3,
      [](World& world) {
        auto given = short_options();
        given.topologies = {pools(3, 1)};
        given.topologies[0].topology = Topology(kRows, {{"a", ranks(0, 3)}});
        const auto all = world.group("step", ranks(0, 3));
        const auto failing = [&](const Case&) -> Outcome {
          if (world.rank() == 1) {
            throw std::out_of_range("no such row");
          }
          all.sum("gradient", torch::ones({2}));
          return {};
        };
        std::string said;
        try {
          GradCheck(world.all(), reference, failing, given).run();
        } catch (const std::out_of_range& error) {
          said = error.what();
        } catch (const CollectiveError& error) {
          said = error.what();
        }
        RANK_EXPECT_TEXT(said, world.rank() == 1 ? "no such row" : "rank 1");
      },
      testing::with_timeout(1500));
}

TEST(GradCheckRanks, RanksThatWereGivenOtherOptionsAreTold) {
  expect_ranks(3, [](World& world) {
    auto given = short_options();
    given.topologies = {pools(2, 1)};
    given.terms[0].coefficient = world.rank() == 2 ? 7 : 1;
    const auto error = testing::error_of([&] { check(world, Fault::None, given); });
    RANK_EXPECT_TEXT(error, "rank 2 would agree on \"gradcheck\": term fit 7");
  });
}

}  // namespace
}  // namespace retape::dist
