// How GradCheck judges: pure functions, and a whole check of one process.
#include "dist/gradcheck/explain.h"
#include "dist/gradcheck/fit.h"
#include "dist/gradcheck/guess.h"
#include "dist/gradcheck/judge.h"
#include "dist/gradcheck/sizes.h"
#include "dist/gradcheck/variants.h"

#include <retape/dist/dist.h>
#include <retape/dist/gradcheck.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#define BOOST_BIND_GLOBAL_PLACEHOLDERS  // its own headers want them
#include <boost/property_tree/json_parser.hpp>

#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>

namespace retape::dist {
namespace {

using detail::guesses;
using detail::Run;
using detail::United;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using Kind = Verdict::Kind;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<int> ranks(int first, int count) {
  std::vector<int> all(count);
  std::iota(all.begin(), all.end(), first);
  return all;
}

// Sizes as the name has them: "4,2,2".
NamedTopology three(int ci, int block, int ppgd, int blocks = 1, int64_t rows = 24) {
  std::vector<Pool> all{{"ci", ranks(0, ci)}};
  for (int i = 0; i < blocks; ++i) {
    all.push_back({"block" + std::to_string(i), ranks(ci + i * block, block)});
  }
  all.push_back({"ppgd", ranks(ci + blocks * block, ppgd)});
  const auto name = std::to_string(ci) + "," + std::to_string(block) + "," + std::to_string(ppgd);
  return {name, Topology(rows, all)};
}

torch::Tensor numbers(std::vector<double> values) {
  return torch::tensor(values, torch::kDouble);
}

Outcome gradient_of(const torch::Tensor& tensor) {
  return {{{"w", tensor}}, {}, {}};
}

// ---- factors

TEST(Guesses, AreTheSimplestProductOrQuotientOfSizes) {
  const auto t = three(6, 3, 2).topology;
  EXPECT_THAT(guesses(6, t, false, 1e-6), ElementsAre("n_ci"));
  EXPECT_THAT(guesses(1.0 / 3, t, false, 1e-6), ElementsAre("1 / n_block0"));
  EXPECT_THAT(guesses(1.5, t, false, 1e-6), ElementsAre("n_block0 / n_ppgd"));
  EXPECT_THAT(guesses(18, t, false, 1e-6), ElementsAre("n_ci * n_block0"));
  EXPECT_THAT(guesses(1.0 / 36, t, false, 1e-6), ElementsAre("1 / n_ci^2"));
  EXPECT_THAT(guesses(11, t, false, 1e-6), ElementsAre("n_ranks"));
  EXPECT_THAT(guesses(1.0 / 18, t, false, 1e-6), ElementsAre("1 / (n_ci * n_block0)"));
}

TEST(Guesses, AtEqualSizesAllThatAreEquallySimpleAreNamed) {
  const auto t = three(4, 2, 2).topology;
  EXPECT_THAT(guesses(2, t, false, 1e-6), UnorderedElementsAre("n_block0", "n_ppgd", "2"));
  EXPECT_THAT(
      guesses(0.5, t, false, 1e-6), UnorderedElementsAre("1 / n_block0", "1 / n_ppgd", "1 / 2"));
  EXPECT_THAT(guesses(4, t, false, 1e-6), ElementsAre("n_ci"));
}

TEST(Guesses, WhatSeveralSizesMakeInOneTopologyAnotherTellsApart) {
  const auto here = three(6, 3, 2).topology;
  const auto there = three(2, 4, 8).topology;
  const auto square = three(2, 2, 2).topology;
  EXPECT_THAT(guesses(2, here, false, 1e-6), UnorderedElementsAre("n_ppgd", "2"));
  EXPECT_THAT(guesses(0.5, there, false, 1e-6), UnorderedElementsAre("1 / n_ci", "1 / 2"));
  EXPECT_THAT(guesses({{2, here}, {0.5, there}}, false, 1e-6), ElementsAre("n_ci / n_block0"));
  EXPECT_THAT(guesses({{2, here}, {1, square}}, false, 1e-6), ElementsAre("n_ci / n_block0"));
  EXPECT_THAT(guesses({{2, here}, {2, there}}, false, 1e-6), ElementsAre("2"));
  EXPECT_THAT(guesses({{2, here}, {0.3, there}}, false, 1e-6), IsEmpty());
  EXPECT_THAT(guesses({{2, here}, {-2, there}}, false, 1e-6), IsEmpty());
}

TEST(Guesses, BlocksOfOneSizeAreOneNumber) {
  const auto t = three(32, 2, 4, 2, 32).topology;
  EXPECT_THAT(guesses(16, t, false, 1e-6), ElementsAre("n_ci / n_block0"));
}

TEST(Guesses, NormsMayBeRoots) {
  const auto t = three(6, 3, 2).topology;
  EXPECT_THAT(guesses(std::sqrt(6), t, true, 1e-6), ElementsAre("sqrt(n_ci)"));
  EXPECT_THAT(guesses(std::sqrt(6), t, false, 1e-6), IsEmpty());
}

TEST(Guesses, ZeroSignAndWhatNoSizesMake) {
  const auto t = three(6, 3, 2).topology;
  EXPECT_THAT(guesses(0, t, false, 1e-6), ElementsAre("0"));
  EXPECT_THAT(guesses(-1, t, false, 1e-6), ElementsAre("-1"));
  EXPECT_THAT(guesses(-6, t, false, 1e-6), ElementsAre("-n_ci"));
  EXPECT_THAT(guesses(1, t, false, 1e-6), IsEmpty());
  EXPECT_THAT(guesses(0.717, t, false, 1e-6), IsEmpty());
  EXPECT_THAT(guesses(kInfinity, t, false, 1e-6), IsEmpty());
}

TEST(Fit, FindsTheFactorAndWhatItLeaves) {
  const auto r = numbers({1, -2, 4});
  auto fit = detail::fit(r, r * 0.25);
  EXPECT_DOUBLE_EQ(fit.alpha, 0.25);
  EXPECT_LT(fit.residual, 1e-15);
  EXPECT_DOUBLE_EQ(fit.error, 0.75);
  fit = detail::fit(r, r + numbers({2, 1, 0}));  // orthogonal to r
  EXPECT_NEAR(fit.alpha, 1, 1e-15);
  EXPECT_NEAR(fit.residual, std::sqrt(5.0 / 21), 1e-15);
  EXPECT_DOUBLE_EQ(fit.error, 0.5);
}

TEST(Fit, SmallNumbersDoNotVanishInTheirSquares) {
  const auto r = numbers({1e-200, -2e-200});
  const auto fit = detail::fit(r, r * 3);
  EXPECT_DOUBLE_EQ(fit.alpha, 3);
  EXPECT_DOUBLE_EQ(detail::euclidean(r), std::sqrt(5) * 1e-200);
}

TEST(Fit, EveryDtypeIsJudgedInFloat64) {
  const auto r = numbers({1, 2});
  for (const auto dtype : {torch::kFloat, torch::kHalf, torch::kBFloat16}) {
    EXPECT_DOUBLE_EQ(detail::fit(r.to(dtype), r.to(dtype) * 2).alpha, 2);
  }
  const auto c = torch::complex(r, r);
  EXPECT_DOUBLE_EQ(detail::fit(c, c * 2).error, 1);
}

// ---- rows

struct Judging {
  NamedTopology topology = three(6, 3, 2);
  Run run{topology, {}, "all", 1e-12, false};

  GradRow one(const Outcome& reference, const United& found) const {
    const auto rows = detail::judge(run, reference, found, reference);
    EXPECT_THAT(rows, SizeIs(1));
    return rows.empty() ? GradRow{} : rows.front();
  }
};

TEST(Judge, EqualIsToRounding) {
  const Judging judging;
  const auto row = judging.one(
      gradient_of(numbers({1, 2})), {gradient_of(numbers({1, 2 + 1e-13}))});
  EXPECT_EQ(row.kind, Kind::Equal);
  EXPECT_NEAR(row.error, 5e-14, 1e-15);
  EXPECT_EQ(row.reason, "");
}

TEST(Judge, AFactorIsNamedBySizes) {
  const Judging judging;
  const auto row = judging.one(gradient_of(numbers({1, 2})), {gradient_of(numbers({1.5, 3}))});
  EXPECT_EQ(row.kind, Kind::Different);
  EXPECT_THAT(row.guesses, ElementsAre("n_block0 / n_ppgd"));
  EXPECT_EQ(row.reason, "1.5 times the reference: n_block0 / n_ppgd");
}

TEST(Judge, WhatNoFactorExplainsIsNotCalledAScale) {
  Judging judging;
  const auto reference = gradient_of(numbers({1, 2}));
  const United found{gradient_of(numbers({2, 2}))};
  EXPECT_THAT(
      judging.one(reference, found).reason,
      ::testing::StartsWith(
          "no factor explains it (alpha 1.2, residual 0.4). Candidates: a mean of each rank's "
          "mean"));
  EXPECT_THAT(judging.one(reference, found).reason, HasSubstr("a function of a rank's own sum"));
  judging.run.random = true;
  EXPECT_THAT(judging.one(reference, found).reason, HasSubstr("row_random.h"));
}

TEST(Judge, ATrifleMoreThanRoundingIsNotCalledAFactor) {
  const Judging judging;
  const auto row = judging.one(
      gradient_of(numbers({1, 2})), {gradient_of(numbers({1, 2 + 1e-11}))});
  EXPECT_EQ(row.kind, Kind::Different);
  EXPECT_THAT(row.reason, HasSubstr("no factor, and more than rounding"));
}

TEST(Judge, NeighboursTellWhereItIsRight) {
  const auto row = [](const char* topology, const char* dtype, Kind kind) {
    GradRow made;
    made.topology = topology;
    made.dtype = dtype;
    made.kind = kind;
    return made;
  };
  std::vector<GradRow> rows{
      row("4", "float64", Kind::Equal),
      row("4", "float32", Kind::Different),
      row("4, ragged", "float64", Kind::Different),
      row("4, ragged", "float32", Kind::Different)};
  rows.push_back(row("4, empty", "float64", Kind::Different));
  rows.back().reason = "not finite, and the reference is";
  auto without_ragged = rows;
  without_ragged[2].kind = Kind::Equal;
  const std::map<std::string, detail::Origin> variants{
      {"4, ragged", {"4"}}, {"4, empty", {"4", true}}};
  detail::explain_by_neighbours(rows, variants);
  detail::explain_by_neighbours(without_ragged, variants);
  EXPECT_THAT(rows[1].reason, HasSubstr("float64 is equal. Candidates: this dtype rounds more"));
  EXPECT_THAT(
      rows[2].reason,
      HasSubstr("only with ragged shards (4 is equal). Candidates: a mean of each rank's mean"));
  EXPECT_THAT(rows[2].reason, HasSubstr("rows that are dropped or padded where shards differ"));
  EXPECT_THAT(rows[2].reason, HasSubstr("state of an earlier run"));
  EXPECT_EQ(rows[3].reason, "");
  EXPECT_THAT(
      rows[4].reason,
      HasSubstr("not finite, and the reference is; only with ragged shards (4 is equal)"));
  EXPECT_THAT(
      without_ragged[4].reason,
      HasSubstr("; only where a rank has no rows (4 is equal). Candidates: a count of"));
}

TEST(Judge, NeighboursNarrowCandidatesDown) {
  Judging judging;
  auto differs = judging.one(gradient_of(numbers({1, 2})), {gradient_of(numbers({2, 2}))});
  auto equal = differs;
  equal.kind = Kind::Equal;
  differs.topology = "6,3,2, ragged";
  std::vector<GradRow> rows{equal, differs};
  detail::explain_by_neighbours(rows, {{"6,3,2, ragged", {"6,3,2"}}});
  EXPECT_THAT(
      rows[1].reason,
      HasSubstr("residual 0.4), only with ragged shards (6,3,2 is equal). Candidates: "));
  EXPECT_THAT(rows[1].reason, Not(HasSubstr("a rank's own sum")));
}

TEST(Judge, ARestLikeTheRoundingOfFloat32HintsAtPrecision) {
  Judging judging;
  const auto reference = gradient_of(numbers({1, -2, 3}));
  const United found{gradient_of(numbers({1 + 1e-7, -2 + 1e-7, 3}))};
  const auto row = judging.one(reference, found);
  EXPECT_EQ(row.kind, Kind::Different);
  EXPECT_THAT(
      row.reason,
      HasSubstr(
          "float32 rounds like that. Candidates: a part of the step that computes or sends in "
          "float32"));
  const United worse{gradient_of(numbers({1 + 1e-3, -2 + 1e-3, 3}))};
  EXPECT_THAT(judging.one(reference, worse).reason, Not(HasSubstr("float32")));
}

TEST(Judge, ARestLikeTheRoundingOfFloat32IsToldBesideAFactor) {
  Judging judging;
  const auto reference = gradient_of(numbers({1, -2, 3}));
  for (const double rest : {1e-7, 1e-9}) {
    const auto row = judging.one(reference, {gradient_of(numbers({6 + 6 * rest, -12, 18}))});
    EXPECT_THAT(row.reason, StartsWith("6 times the reference: "));
    EXPECT_THAT(
        row.reason,
        HasSubstr(", and float32 rounds like that. Candidates: a part of the step that computes"));
    EXPECT_THAT(row.reason, Not(HasSubstr("a mean of each rank's mean")));
  }
  const auto exact = judging.one(reference, {gradient_of(numbers({6, -12, 18}))});
  EXPECT_THAT(exact.reason, Not(HasSubstr("float32")));
  // A factor that nothing makes is no scale with a rest.
  const auto odd = judging.one(reference, {gradient_of(numbers({1.37 + 1e-7, -2.74, 4.11}))});
  EXPECT_THAT(odd.reason, StartsWith("no factor explains it"));
}

// Microbatches make the same factor in every topology, pools that differ in size do not.
TEST(Judge, AFractionThatAPoolMakesMayBeOfMicrobatchesToo) {
  const NamedTopology four{"4", Topology(24, {{"ranks", {0, 1, 2, 3}}})};
  const NamedTopology one{"1", Topology(24, {{"ranks", {0}}})};
  const auto row_at = [](const char* topology, double alpha, Kind kind) {
    GradRow row;
    row.topology = topology;
    row.dtype = "float64";
    row.kind = kind;
    row.alpha = alpha;
    row.tolerance = 1e-12;
    return row;
  };
  auto differs = row_at("4", 0.25, Kind::Different);
  differs.guesses = {"1 / n_ranks"};
  differs.reason = detail::explain(differs, {four, {}, "fit", 1e-12});
  EXPECT_EQ(
      differs.reason, "0.25 times the reference: 1 / n_ranks, or 1 / microbatches if there are 4");
  std::vector<GradRow> rows{differs};
  detail::guess_from_all_topologies(rows, {four});
  EXPECT_EQ(rows[0].reason, differs.reason);
  rows = {differs, row_at("1", 1, Kind::Equal)};
  detail::guess_from_all_topologies(rows, {four, one});
  EXPECT_EQ(rows[0].reason, "0.25 times the reference: 1 / n_ranks");
}

TEST(Judge, AFractionThatNoPoolMakesMayBeOfMicrobatches) {
  Judging judging;
  const auto reference = gradient_of(numbers({7, 14}));
  EXPECT_EQ(
      judging.one(reference, {gradient_of(numbers({1, 2}))}).reason,
      "0.142857 times the reference, not explained by any product of pool sizes. Candidate: 1 / "
      "microbatches if there are 7");
  judging.run.microbatches = 7;
  const auto row = judging.one(reference, {gradient_of(numbers({1, 2}))});
  EXPECT_THAT(row.guesses, ElementsAre("1 / microbatches"));
  EXPECT_EQ(row.reason, "0.142857 times the reference: 1 / microbatches");
  EXPECT_THAT(
      judging.one(reference, {gradient_of(numbers({6, 13}))}).reason,
      Not(HasSubstr("microbatches if")));
}

TEST(Judge, WhatIsMissingOrTooMuchIsDifferent) {
  const Judging judging;
  auto row = judging.one(gradient_of(numbers({1, 2})), {});
  EXPECT_EQ(row.kind, Kind::Different);
  EXPECT_EQ(row.reason, "no rank has it");
  EXPECT_EQ(row.alpha, 0);
  row = judging.one({}, {gradient_of(numbers({1, 2}))});
  EXPECT_EQ(row.kind, Kind::Different);
  EXPECT_EQ(row.reason, "the reference has none, and ranks have up to 2");
  row = judging.one(gradient_of(numbers({1, 2})), {gradient_of(numbers({1, 2, 3}))});
  EXPECT_EQ(row.reason, "sizes are [3], of the reference [2]");
}

TEST(Judge, NumbersThatAreNotFinite) {
  const Judging judging;
  const auto bad = numbers({1, std::nan("")});
  auto row = judging.one(gradient_of(numbers({1, 2})), {gradient_of(bad)});
  EXPECT_EQ(row.kind, Kind::Different);
  EXPECT_EQ(row.reason, "not finite, and the reference is");
  row = judging.one(gradient_of(bad), {gradient_of(bad)});
  EXPECT_EQ(row.kind, Kind::Vacuous);
  EXPECT_EQ(row.reason, "the reference is not finite");
}

// The gradient of the keys' bias in attention is zero; what is left is how it was rounded.
TEST(Judge, WhatIsRoundingBesideOtherGradientsIsVacuousAndAFaultInItIsNot) {
  Judging judging;
  const auto with_keys = [](double keys) {
    return Outcome{{{"keys", numbers({keys, -keys})}, {"queries", numbers({1, 2})}}, {}, {}};
  };
  const auto kind_of_keys = [&](const Outcome& reference, const Outcome& found) {
    const auto rows = detail::judge(judging.run, reference, {found}, reference);
    return rows.size() == 2 ? rows.front().kind : Kind::Equal;
  };
  EXPECT_EQ(kind_of_keys(with_keys(1e-17), with_keys(3e-17)), Kind::Vacuous);
  EXPECT_EQ(kind_of_keys(with_keys(1e-17), with_keys(3e-9)), Kind::Different);
  EXPECT_EQ(kind_of_keys(with_keys(1e-9), with_keys(3e-9)), Kind::Different);
  auto other_size = with_keys(3e-17);
  other_size.gradients["keys"] = numbers({3e-17});
  EXPECT_EQ(kind_of_keys(with_keys(1e-17), other_size), Kind::Different);
  judging.run.precision.dtype = torch::kBFloat16;
  judging.run.tolerance = 0.1;
  EXPECT_EQ(kind_of_keys(with_keys(1e-3), with_keys(-1e-3)), Kind::Vacuous);
  EXPECT_EQ(
      kind_of_keys(with_keys(0.1), with_keys(-0.1)), Kind::Different);  // as large as some others
  EXPECT_EQ(kind_of_keys(with_keys(0.01), with_keys(-0.01)), Kind::Different);
  judging.run.may_be_dead = {"keys"};
  EXPECT_EQ(
      kind_of_keys(with_keys(0.1), with_keys(-0.1)), Kind::Equal);  // left out: one row is there
  EXPECT_EQ(kind_of_keys(with_keys(0.5), with_keys(-0.5)), Kind::Different);
  judging.run.precision.dtype = torch::kDouble;
  EXPECT_THAT(
      detail::judge(judging.run, with_keys(1e-17), {with_keys(3e-17)}, with_keys(1e-17)),
      SizeIs(1));
}

TEST(Judge, ParametersThatMoveByRoundingAloneAreVacuous) {
  Judging judging;
  judging.run.steps = 1;
  const auto after = [](double keys, double moved) {
    return Outcome{
        {{"keys", numbers({keys})}, {"queries", numbers({1})}},
        {{"keys", numbers({moved})}, {"queries", numbers({2})}},
        {}};
  };
  Outcome before;
  before.parameters = {{"keys", numbers({0})}, {"queries", numbers({1})}};
  const auto rows = detail::judge(
      judging.run, after(1e-17, 1e-3), {after(-1e-17, -1e-3)}, before);  // as AdamW does
  for (const auto& row : rows) {
    EXPECT_EQ(row.kind, row.tensor == "keys" ? Kind::Vacuous : Kind::Equal)
        << row.what << " " << row.tensor;
  }
}

TEST(Judge, ZeroIsZeroBesideWhatAllTermsGive) {
  const Judging judging;
  const auto zeros = gradient_of(numbers({0, 0}));
  const United found{gradient_of(numbers({0, 1e-14}))};
  EXPECT_THAT(detail::judge(judging.run, zeros, found, gradient_of(numbers({1, 2}))), IsEmpty());
  EXPECT_THAT(detail::judge(judging.run, zeros, found, gradient_of(numbers({1e-3, 0}))), SizeIs(1));
  EXPECT_THAT(detail::judge(judging.run, zeros, {zeros}, zeros), IsEmpty());
}

TEST(Judge, ReplicasThatDifferAreDifferentWhateverTheirValues) {
  const Judging judging;
  const auto row = judging.one(
      gradient_of(numbers({1})), {gradient_of(numbers({1})), {{"w", "rank 1 has other bits"}}});
  EXPECT_EQ(row.kind, Kind::Different);
  EXPECT_EQ(row.error, 0);
  EXPECT_EQ(row.reason, "rank 1 has other bits");
}

TEST(Judge, ANormThatCountsReplicasIsARoot) {
  const Judging judging;
  Outcome reference, found;
  reference.norms["all"] = 2;
  found.norms["all"] = 2 * std::sqrt(6);
  const auto row = judging.one(reference, {found});
  EXPECT_EQ(row.what, "norm");
  EXPECT_EQ(row.kind, Kind::Different);
  EXPECT_THAT(row.guesses, ElementsAre("sqrt(n_ci)"));
  EXPECT_EQ(judging.one(reference, {}).reason, "no rank has it");
  EXPECT_EQ(judging.one({}, {found}).kind, Kind::Different);
}

TEST(Judge, ALossThatIsLoggedWrongIsDifferentWhateverItsGradients) {
  const Judging judging;
  auto reference = gradient_of(numbers({1}));
  reference.losses["loss"] = 2;
  auto found = reference;
  const auto loss_of = [&](const United& ranks) {
    const auto rows = detail::judge(judging.run, reference, ranks, reference);
    EXPECT_THAT(rows, SizeIs(2));
    EXPECT_EQ(rows.front().kind, Kind::Equal);
    return rows.back();
  };
  EXPECT_EQ(loss_of({found}).kind, Kind::Equal);
  EXPECT_EQ(
      loss_of({found, {}, {}, {}, {{"loss", "rank 1 has other bits"}}}).reason,
      "rank 1 has other bits");
  found.losses["loss"] = 2.0 / 6;
  const auto row = loss_of({found});
  EXPECT_EQ(row.what, "loss");
  EXPECT_EQ(row.kind, Kind::Different);
  EXPECT_THAT(row.guesses, ElementsAre("1 / n_ci"));
}

// Parameters after two steps, of those that begin at {1, 2, 3, 4}.
struct Moving : Judging {
  Outcome before, reference;

  explicit Moving(
      torch::Dtype dtype = torch::kDouble, std::optional<torch::Dtype> wire = std::nullopt) {
    run.steps = 2;
    run.precision = {dtype, wire};
    run.tolerance = derived_tolerance(dtype, wire);
    before.parameters["w"] = numbers({1, 2, 3, 4});
    reference.parameters["w"] = before.parameters["w"] + 1e-3;
  }

  GradRow moved(const torch::Tensor& by) const {
    const auto rows = detail::judge(
        run, reference, {{{}, {{"w", numbers({1, 2, 3, 4}) + by}}, {}}}, before);
    EXPECT_THAT(rows, SizeIs(1));
    return rows.empty() ? GradRow{} : rows.front();
  }
};

TEST(Judge, ParametersAreComparedByHowFarTheyHaveMoved) {
  const auto by = numbers({1e-3, 1e-3, 1e-3, 1e-3});
  for (const auto& moving :
       {Moving(), Moving(torch::kFloat), Moving(torch::kFloat, torch::kBFloat16)}) {
    EXPECT_EQ(moving.moved(by).kind, Kind::Equal);
    const auto row = moving.moved(-by);
    EXPECT_EQ(row.kind, Kind::Different);
    EXPECT_NEAR(row.alpha, -1, 1e-9);
    EXPECT_NEAR(row.error, 2, 1e-9);
    EXPECT_EQ(row.reason, "movement in steps: -1 times the reference: -1");
    EXPECT_EQ(moving.moved(by * 0).kind, Kind::Different);
    EXPECT_EQ(moving.moved(by * 2).kind, Kind::Different);
  }
  EXPECT_EQ(Moving(torch::kFloat).moved(by * 0.8).kind, Kind::Different);
  EXPECT_EQ(Moving().moved(by * (1 + 1e-8)).kind, Kind::Different);
}

// Parameters of bfloat16 do not hold a step of a thousandth.
TEST(Judge, WhereRoundingHidesTheMovementItIsVacuous) {
  const auto row = Moving(torch::kBFloat16).moved(numbers({0, 0, 0, 0}));
  EXPECT_EQ(row.kind, Kind::Vacuous);
  EXPECT_GT(row.tolerance, 1);
  EXPECT_THAT(row.reason, HasSubstr("standing still would pass"));
}

TEST(Judge, AParameterThatStepsDoNotMoveIsVacuousUnlessItMayBeDead) {
  Moving moving;
  moving.reference = moving.before;
  EXPECT_EQ(moving.moved(numbers({0, 0, 0, 0})).kind, Kind::Vacuous);
  EXPECT_EQ(moving.moved(numbers({0, 0, 0, 1e-9})).kind, Kind::Different);
  moving.run.may_be_dead = {"w"};
  EXPECT_EQ(moving.moved(numbers({0, 0, 0, 0})).kind, Kind::Equal);
  moving.before = {};
  EXPECT_THAT(moving.moved(numbers({0, 0, 0, 0})).reason, HasSubstr("parameters with steps 0"));
}

TEST(Judge, ParametersBeforeAnyStepHaveNoRow) {
  Moving moving;
  moving.run.steps = 0;
  EXPECT_THAT(
      detail::judge(moving.run, moving.reference, {moving.reference}, moving.before), IsEmpty());
}

TEST(Tolerance, OfAMovementIsOfTurnedSignsAndOfRoundedParameters) {
  using detail::movement_tolerance;
  EXPECT_DOUBLE_EQ(movement_tolerance({}, 1e-12, {2, 100, 1000}), 1e-9);
  const detail::Precision production{torch::kFloat, std::nullopt};
  // Of very many numbers a share turns, and chance adds nothing.
  EXPECT_NEAR(movement_tolerance(production, 1e-4, {1, int64_t{1} << 60, 0}), 1e-2, 1e-6);
  // Of a hundred one may, where a fourth of one is to be expected.
  EXPECT_GT(movement_tolerance(production, 1e-2, {1, 100, 0}), std::sqrt(4.0 / 100));
  EXPECT_DOUBLE_EQ(
      movement_tolerance(production, 0, {3, 100, 1000}), 2 * 3 * 1000 * std::pow(2, -23));
}

TEST(Tolerance, IsDerivedFromWhatRounds) {
  EXPECT_EQ(derived_tolerance(torch::kDouble), 1e-12);
  EXPECT_DOUBLE_EQ(derived_tolerance(torch::kFloat), 100 * std::pow(2, -23));
  EXPECT_DOUBLE_EQ(derived_tolerance(torch::kBFloat16), 8 * std::pow(2, -7));
  EXPECT_DOUBLE_EQ(
      derived_tolerance(torch::kFloat, torch::kBFloat16),
      100 * std::pow(2, -23) + 8 * std::pow(2, -7));
  EXPECT_EQ(derived_tolerance(torch::kFloat, torch::kDouble), derived_tolerance(torch::kFloat));
  EXPECT_THROW(derived_tolerance(torch::kLong), UsageError);
}

// ---- what could not have been seen

std::vector<GradRow> visibility(
    const std::vector<Term>& terms,
    const std::vector<Outcome>& alone,
    const Outcome& all,
    std::vector<std::string> dead = {},
    double tolerance = 1e-12) {
  const auto topology = three(6, 3, 2);
  Run run{topology, {}, "all", tolerance, false, 0, std::move(dead)};
  detail::Terms judged{terms, {}, &all};
  for (const auto& outcome : alone) {
    judged.alone.push_back(&outcome);
  }
  std::vector<GradRow> rows;
  detail::judge_visibility(run, judged, rows);
  return rows;
}

TEST(Visibility, ATermTooSmallBesideTheOthersIsVacuous) {
  const std::vector<Term> terms{{"large"}, {"small"}};
  const std::vector<Outcome> alone{gradient_of(numbers({1})), gradient_of(numbers({1e-8}))};
  const auto all = gradient_of(numbers({1 + 1e-8}));
  EXPECT_THAT(visibility(terms, alone, all), IsEmpty());
  const auto rows = visibility(terms, alone, all, {}, derived_tolerance(torch::kFloat));
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_EQ(rows[0].kind, Kind::Vacuous);
  EXPECT_EQ(rows[0].terms, "small");
  EXPECT_THAT(rows[0].reason, HasSubstr("is 1e-08 of this gradient with all terms on"));
}

TEST(Visibility, ATermThatIsNotDeclaredLiveForATensorMayBeSmallThere) {
  const std::vector<Outcome> alone{gradient_of(numbers({1})), gradient_of(numbers({1e-8}))};
  const auto all = gradient_of(numbers({1}));
  EXPECT_THAT(visibility({{"large"}, {"small", 1, {"w"}}}, alone, all, {}, 1e-5), SizeIs(1));
  const std::vector<Outcome> two{
      {{{"w", numbers({1})}, {"v", numbers({1})}}, {}, {}},
      {{{"w", numbers({1e-8})}, {"v", numbers({1})}}, {}, {}}};
  EXPECT_THAT(visibility({{"large"}, {"small", 1, {"v"}}}, two, two[0], {}, 1e-5), IsEmpty());
}

TEST(Visibility, ATermThatIsDeclaredLiveAndIsZeroIsVacuous) {
  const std::vector<Outcome> alone{gradient_of(numbers({1})), gradient_of(numbers({0}))};
  const auto rows = visibility({{"one"}, {"zero", 1, {"w"}}}, alone, gradient_of(numbers({1})));
  ASSERT_THAT(rows, SizeIs(2));
  EXPECT_THAT(rows[0].reason, HasSubstr("declared live, and its gradient is zero"));
  EXPECT_EQ(rows[1].reason, "the term has no gradient at all");
}

TEST(Visibility, ANameThatNoTensorHasIsVacuous) {
  const auto rows = visibility(
      {{"one", 1, {"w", "layres.*"}}}, {gradient_of(numbers({1}))}, gradient_of(numbers({1})));
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_EQ(rows[0].tensor, "layres.*");
}

TEST(Visibility, ATensorWithoutAnyGradientIsVacuousUnlessItMayBeDead) {
  Outcome all{{{"w", numbers({1})}, {"dead.bias", numbers({0})}, {"none", {}}}, {}, {}};
  EXPECT_THAT(visibility({{"one"}}, {all}, all), SizeIs(2));
  EXPECT_THAT(visibility({{"one"}}, {all}, all, {"dead.*", "none"}), IsEmpty());
}

TEST(Topologies, OnesAndSquaresProveNothing) {
  using detail::vacuous_topologies;
  EXPECT_THAT(vacuous_topologies({three(1, 1, 1)}), SizeIs(1));
  EXPECT_THAT(vacuous_topologies({three(1, 1, 1), three(2, 2, 2)}), SizeIs(3));  // each pair
  const auto two = vacuous_topologies({three(1, 1, 1), three(4, 2, 2), three(2, 4, 4)});
  ASSERT_THAT(two, SizeIs(1));
  EXPECT_THAT(two[0], HasSubstr("n_block0 and n_ppgd are equal in every topology"));
  EXPECT_THAT(
      vacuous_topologies({three(1, 1, 1), three(4, 2, 2), three(6, 3, 2), three(2, 4, 8)}),
      IsEmpty());
  // Each pair differs somewhere, all sizes nowhere.
  const auto pairs = vacuous_topologies(
      {three(1, 1, 1), three(2, 3, 3), three(3, 3, 2), three(3, 2, 3)});
  EXPECT_THAT(pairs, ElementsAre(HasSubstr("no topology has all sizes different")));
  EXPECT_THAT(vacuous_topologies({{"4", Topology(8, {{"ranks", ranks(0, 4)}})}}), IsEmpty());
  // Two names for the same ranks are one size.
  EXPECT_THAT(
      vacuous_topologies({{"4", Topology(8, {{"data", ranks(0, 4)}, {"all", ranks(0, 4)}})}}),
      IsEmpty());
}

TEST(Topologies, OneDirectionOfFanProvesNothing) {
  using detail::vacuous_topologies;
  const auto reasons = vacuous_topologies({three(1, 1, 1), three(6, 3, 2)});
  ASSERT_THAT(reasons, SizeIs(1));
  EXPECT_THAT(
      reasons[0],
      HasSubstr(
          "one direction of fan only: always n_block0 > n_ppgd, n_ci > n_block0, n_ci > n_ppgd"));
  EXPECT_THAT(vacuous_topologies({three(1, 1, 1), three(6, 3, 2), three(2, 3, 4)}), IsEmpty());
  EXPECT_THAT(
      vacuous_topologies({three(1, 1, 1), three(6, 3, 2), three(2, 4, 3)}),
      ElementsAre(HasSubstr("always n_block0 > n_ppgd. Fix")));
}

TEST(Topologies, NoneOfOnesProvesNothingWherePoolsAreApart) {
  const auto reasons = detail::vacuous_topologies({three(6, 3, 2), three(2, 4, 8)});
  ASSERT_THAT(reasons, SizeIs(1));
  EXPECT_THAT(reasons[0], HasSubstr("no topology has one rank in every pool"));
}

// A part of a pool is never larger than it, and what is parallel over all ranks does not run on
// one.
TEST(Topologies, PartsOfOnePoolMayBeSmallerAlways) {
  const NamedTopology experts{
      "4",
      Topology(8, {{"ranks", ranks(0, 4)}, {"expert0", ranks(0, 2)}, {"expert1", ranks(2, 2)}})};
  EXPECT_THAT(detail::vacuous_topologies({experts}), IsEmpty());
  EXPECT_THAT(
      detail::notes_on({experts}),
      ElementsAre(
          HasSubstr("always n_ranks > n_expert0"),
          HasSubstr("are even in every topology"),
          HasSubstr("no topology has one rank in every pool")));
}

TEST(Topologies, EvenShardsAreNoted) {
  using detail::notes_on;
  EXPECT_THAT(
      notes_on({three(6, 3, 2)}),
      ElementsAre(HasSubstr("shards of ci, block0, ppgd are even in every topology")));
  EXPECT_THAT(
      notes_on({three(6, 3, 2), {"ragged", *detail::ragged(three(6, 3, 2).topology)}}), IsEmpty());
}

TEST(Topologies, ARowMoreOnSomeRanksIsNotRagged) {
  const NamedTopology ten{"4", Topology(10, {{"ranks", ranks(0, 4)}})};  // 3, 3, 2, 2
  EXPECT_FALSE(detail::is_even(ten.topology));
  EXPECT_THAT(detail::never_uneven({ten}), ElementsAre("ranks"));
  EXPECT_TRUE(detail::is_uneven(detail::ragged(ten.topology)->pool("ranks")));
  EXPECT_TRUE(detail::is_uneven({"twice", {0, 1}, {{0, 2}, {2, 3}}}));
  EXPECT_THAT(
      detail::never_uneven({{"a row each", Topology(4, {{"ranks", ranks(0, 4)}})}}), IsEmpty());
}

TEST(Topologies, APoolThatIsRaggedAlreadyKeepsItsCut) {
  const Topology given(24, {{"a", {0, 1}, {{0, 20}, {20, 24}}}, {"b", {2, 3, 4}}});
  EXPECT_THAT(detail::never_uneven({{"given", given}}), ElementsAre("b"));
  const auto made = detail::ragged(given);
  EXPECT_EQ(made->pool("a").shards, given.pool("a").shards);
  EXPECT_TRUE(detail::is_uneven(made->pool("b")));
  EXPECT_FALSE(detail::ragged(*made));
}

TEST(Case, MicrobatchesHaveEveryRowOnceAndManySizes) {
  Case what{three(1, 1, 1).topology, {}};
  EXPECT_THAT(what.cut({3, 9}), ElementsAre(RowRange{3, 9}));
  what.microbatches = 3;
  EXPECT_THAT(what.cut({3, 12}), ElementsAre(RowRange{3, 4}, RowRange{4, 7}, RowRange{7, 12}));
  EXPECT_THAT(what.cut({5, 7}), SizeIs(2));  // of a row each
}

TEST(Case, ACopyThatIsCutIsRememberedByAll) {
  Case what{three(1, 1, 1).topology, {}};
  what.was_cut = std::make_shared<std::atomic<bool>>(false);
  const auto copy = what;
  EXPECT_FALSE(*what.was_cut);
  copy.cut({3, 9});
  EXPECT_TRUE(*what.was_cut);
}

TEST(Topologies, ARaggedVariantHasEveryRowOnceAndShardsOfManySizes) {
  const auto even = three(6, 3, 2).topology;
  EXPECT_TRUE(detail::is_even(even));
  const auto made = detail::ragged(even);
  ASSERT_TRUE(made);  // its constructor checks that no row is left out or there twice
  EXPECT_THAT(detail::never_uneven({{"ragged", *made}}), IsEmpty());
  EXPECT_EQ(made->pool("block0").ranks, even.pool("block0").ranks);
  const auto sizes = [&](const char* name) {
    std::vector<int64_t> all;
    for (const auto& shard : made->pool(name).shards) {
      all.push_back(shard.size());
    }
    return all;
  };
  EXPECT_THAT(sizes("ci"), ElementsAre(1, 2, 3, 4, 5, 9));
  EXPECT_THAT(sizes("block0"), ElementsAre(15, 8, 1));
  EXPECT_FALSE(
      detail::ragged(Topology(4, {{"ranks", ranks(0, 4)}})));  // a row each: nothing to choose
}

TEST(Topologies, AVariantHasARankWithoutRowsInEveryPool) {
  const Topology even(12, {{"a", ranks(0, 4)}, {"b", ranks(4, 3)}, {"alone", {7}}});
  const auto made = detail::with_empty_shards(even);
  ASSERT_TRUE(made);
  EXPECT_EQ(
      made->text(),
      "12 rows; a: 0[0,4) 1[4,8) 2[8,12) 3[12,12); b: 4[0,0) 5[0,6) 6[6,12); alone: 7[0,12)");
  EXPECT_THAT(detail::never_empty({{"even", even}}), ElementsAre("a", "b"));
  EXPECT_THAT(detail::never_empty({{"even", even}, {"empty", *made}}), IsEmpty());
  EXPECT_FALSE(detail::with_empty_shards(*made));
  EXPECT_FALSE(detail::with_empty_shards(Topology(4, {{"alone", {0}}})));
}

TEST(Topologies, VariantsAreAddedUnlessTheyAreNotWantedOrGiven) {
  GradCheckOptions given;
  given.topologies = {
      {"1", Topology(12, {{"ranks", {0}}})}, {"3", Topology(12, {{"ranks", ranks(0, 3)}})}};
  const auto names = [&] {
    std::vector<std::string> all;
    for (const auto& [name, topology] : detail::with_variants(given).topologies) {
      all.push_back(name);
    }
    return all;
  };
  EXPECT_THAT(names(), ElementsAre("1", "3", "3, ragged", "3, empty"));
  EXPECT_EQ(detail::with_variants(given).made_from.at("3, empty").from, "3");
  given.empty = false;
  EXPECT_THAT(names(), ElementsAre("1", "3", "3, ragged"));
  given.ragged = false;
  given.empty = true;
  EXPECT_THAT(names(), ElementsAre("1", "3"));
  given.ragged = true;
  given.topologies.push_back(
      {"own", Topology(12, {{"ranks", ranks(0, 3), {{0, 2}, {2, 12}, {12, 12}}}})});
  EXPECT_THAT(names(), ElementsAre("1", "3", "own"));
}

TEST(Topologies, TheSelfTestGoesWhereSizesAreDifferentAndRanksFew) {
  const std::vector<NamedTopology> all{
      three(1, 1, 1), three(4, 2, 2), three(2, 4, 8), three(6, 3, 2), three(2, 2, 2)};
  EXPECT_EQ(detail::most_different(all)->name, "6,3,2");
  EXPECT_EQ(detail::most_different({three(1, 1, 1)}), nullptr);
}

// ---- a whole check, of one process

GradCheckOptions alone() {
  GradCheckOptions options;
  options.terms = {{"fit", 2.0}};
  options.topologies = {{"1", Topology(4, {{"ranks", {0}}})}};
  return options;
}

GradReport run_alone(const GradCheckOptions& options, double factor = 1) {
  const auto step = [](double scale) {
    return [scale](const Case& c) {
      return gradient_of(torch::ones({2}, c.dtype) * scale * c.terms.at("fit"));
    };
  };
  return GradCheck(Group::alone("world"), step(1), step(factor), options).run();
}

TEST(GradCheck, OneRankProvesNothing) {
  const auto report = run_alone(alone());
  EXPECT_EQ(report.kind, Kind::Vacuous);
  EXPECT_EQ(report.exit_code(), 6);
  EXPECT_THAT(report.rows, SizeIs(2));  // float64, float32
  EXPECT_THAT(report.vacuous, ElementsAre(HasSubstr("every pool of every topology has one rank")));
  EXPECT_THAT(report.text(), HasSubstr("no self-test: no topology has several ranks"));
}

TEST(GradCheck, StepsThatDoNotLookAtTheirTermsIsolateNothing) {
  auto options = alone();
  options.terms = {{"fit"}, {"penalty"}};
  const auto step = [](bool looks) {
    return [looks](const Case& c) {
      const auto fit = looks ? c.terms.at("fit") : 1.0,
                 penalty = looks ? c.terms.at("penalty") : 1.0;
      return gradient_of(torch::ones({2}, c.dtype) * (fit + 2 * penalty));
    };
  };
  constexpr char kTold[] = "each term alone has the gradients of all together";
  EXPECT_THAT(
      GradCheck(Group::alone("world"), step(false), step(false), options).run().text(),
      HasSubstr(kTold));
  EXPECT_THAT(
      GradCheck(Group::alone("world"), step(true), step(true), options).run().text(),
      Not(HasSubstr(kTold)));
}

TEST(GradCheck, DifferentBeatsVacuous) {
  const auto report = run_alone(alone(), 3);
  EXPECT_EQ(report.kind, Kind::Different);
  EXPECT_EQ(report.exit_code(), 1);
  EXPECT_DOUBLE_EQ(report.worst()->alpha, 3);
  EXPECT_THAT(
      report.text(),
      HasSubstr("[1; float64; fit] gradient \"w\": off by 2, allowed 1e-12: 3 times"));
}

TEST(GradCheck, WireAndTolerancesReachTheRows) {
  auto options = alone();
  options.wire = torch::kBFloat16;
  options.tolerance[torch::kFloat] = 0.5;
  options.steps = 2;
  const auto report = run_alone(options);
  std::vector<std::string> dtypes;
  for (const auto& row : report.rows) {
    if (row.terms == "fit") {
      dtypes.push_back(row.dtype + " " + std::to_string(row.tolerance));
    }
  }
  EXPECT_THAT(
      dtypes,
      ElementsAre("float64 0.000000", "float32 0.500000", "float32, bfloat16 wire 0.500000"));
  EXPECT_THAT(report.vacuous.back(), HasSubstr("fit, 2 steps: the reference gives no parameters"));
  EXPECT_THAT(report.text(), HasSubstr("float32, bfloat16 wire changes no number"));
}

TEST(GradCheck, ProgressIsToldBeforeEachRunAndAtTheEnd) {
  const auto step = [](const Case& c) { return gradient_of(torch::ones({2}, c.dtype)); };
  std::vector<std::string> told;
  GradCheck(Group::alone("world"), step, step, alone())
      .run([&](int done, int total, const std::string& what) {
        told.push_back(std::to_string(done) + "/" + std::to_string(total) + " " + what);
      });
  EXPECT_THAT(told, ElementsAre("0/2 1; float64; fit", "1/2 1; float32; fit", "2/2 done"));
}

TEST(GradCheck, AnExceptionOfAStepPassesThrough) {
  const auto good = [](const Case& c) { return gradient_of(torch::ones({2}, c.dtype)); };
  const auto bad = [](const Case&) -> Outcome { throw std::out_of_range("no such row"); };
  std::string told;
  const auto raised = [&](const std::string& text) { told = text; };
  EXPECT_THROW(
      GradCheck(Group::alone("world"), good, bad, alone()).run(nullptr, raised), std::out_of_range);
  EXPECT_EQ(told, "no such row");
  EXPECT_THROW(GradCheck(Group::alone("world"), bad, good, alone()).run(), std::out_of_range);
  EXPECT_NO_THROW(Watch());  // it was given back
}

TEST(GradCheck, RefusesWhatMakesNoSense) {
  const auto refused = [](auto change) {
    auto options = alone();
    change(options);
    try {
      GradCheck(Group::alone("world"), nullptr, nullptr, options);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refused([](auto& o) { o.terms.clear(); }), HasSubstr("[GradCheck] no term"));
  EXPECT_THAT(refused([](auto& o) { o.topologies.clear(); }), HasSubstr("no topology"));
  EXPECT_THAT(
      refused([](auto& o) { o.terms.push_back({"fit"}); }), HasSubstr("two of the name \"fit\""));
  EXPECT_THAT(
      refused([](auto& o) { o.terms[0].coefficient = 0; }),
      HasSubstr("the coefficient of \"fit\" is 0"));
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(
      refused([](auto& o) { o.terms[0].coefficient = kNan; }),
      HasSubstr("the coefficient of \"fit\" is nan"));
  for (const double wrong : {kNan, -1.0, kInfinity}) {
    EXPECT_THAT(
        refused([&](auto& o) { o.tolerance[torch::kFloat] = wrong; }),
        HasSubstr("the tolerance of Float is"));
  }
  EXPECT_THAT(
      refused([](auto& o) { o.terms[0].name = "all"; }), HasSubstr("a term is called \"all\""));
  EXPECT_THAT(refused([](auto& o) { o.steps = -1; }), HasSubstr("steps is -1"));
  EXPECT_THAT(refused([](auto& o) { o.microbatches = 0; }), HasSubstr("microbatches is 0"));
  EXPECT_THAT(
      refused([](auto& o) { o.dtypes = {torch::kLong}; }),
      HasSubstr("no tolerance is known for Long"));
  EXPECT_THAT(
      refused([](auto& o) { o.topologies = {three(6, 3, 2)}; }),
      HasSubstr("has 11 ranks, and \"world\" 1"));
}

// Gradients are the same on all ranks, and wrong because parameters drifted apart before: the drift
// is told.
TEST(GradReport, ReplicasThatDriftApartAreToldBesideGradientsThatDiffer) {
  auto report = run_alone(alone());
  GradRow gradient{"4", "float64", "all, 2 steps", "gradient", "w", Kind::Different};
  gradient.reason = "no factor explains it";
  auto parameter = gradient;
  parameter.what = "parameter";
  parameter.reason =
      "no factor explains it; rank 1 has not the bits that rank 0 has: replicas drift apart";
  report.rows = {gradient, parameter};
  EXPECT_THAT(report.text(), Not(HasSubstr("drift apart")));  // it follows
  report.rows[1].replicas_differ = true;
  EXPECT_THAT(report.text(), HasSubstr("parameter \"w\""));
  EXPECT_THAT(report.text(), HasSubstr("drift apart"));
  report.rows[0].replicas_differ = true;
  EXPECT_THAT(report.text(), Not(HasSubstr("parameter \"w\"")));  // gradients were not reduced
}

TEST(GradReport, MutantsNoticedByAnotherRatioAreNamed) {
  auto report = run_alone(alone());
  report.mutated = "4";
  report.mutants = {
      {{Place::Sum, "w", "ranks", 4}, Mutation::Average, "", 0.25, 0.25, "w", "fit", true, ""},
      {{Place::Once, "p", "ranks", 4}, Mutation::Double, "", 2.0, 1.5, "w", "fit", true, ""},
      {{Place::Residual, "s", "ranks", 4},
       Mutation::LocalValue,
       "",
       std::nullopt,
       0.9,
       "w",
       "fit",
       true,
       ""}};
  EXPECT_THAT(
      report.text(), HasSubstr("3 of 3 mutants noticed, 1 of 2 by the ratio that was predicted"));
  EXPECT_THAT(
      report.text(),
      HasSubstr(
          "noticed, by another ratio: double at once \"p\" of group \"ranks\": 1.5 of \"w\", "
          "predicted 2"));
}

TEST(GradReport, JsonIsReadBackByAnotherReader) {
  auto options = alone();
  options.terms[0].name = "a \"quoted\\\"\n\x01 name";
  auto report = run_alone(alone(), 3);
  report.rows[0].tensor = options.terms[0].name;
  report.rows[0].residual = kInfinity;
  report.mutants.push_back(
      {{Place::Sum, "w", "ranks", 4}, Mutation::Average, "", 0.25, 0.25, "w", "fit", true, ""});
  std::istringstream text(report.json());
  boost::property_tree::ptree tree;
  read_json(text, tree);
  EXPECT_EQ(tree.get<std::string>("kind"), "different");
  EXPECT_EQ(tree.get<int>("exit_code"), 1);
  const auto& row = tree.get_child("rows").front().second;
  EXPECT_EQ(row.get<std::string>("tensor"), options.terms[0].name);
  EXPECT_EQ(row.get<double>("alpha"), 3);
  EXPECT_EQ(row.get<std::string>("residual"), "null");
  EXPECT_FALSE(row.get<bool>("follows"));
  const auto& mutant = tree.get_child("self_test.rows").front().second;
  EXPECT_EQ(mutant.get<std::string>("mutation"), "average");
  EXPECT_TRUE(mutant.get<bool>("as_predicted"));
  EXPECT_EQ(tree.get<double>("self_test.kill_rate"), 1);
  EXPECT_EQ(tree.get<int>("self_test.as_predicted"), 1);
  report.rows[0].tensor = "\xff is not UTF-8";
  EXPECT_THAT(report.json(), HasSubstr(" is not UTF-8"));
}

}  // namespace
}  // namespace retape::dist
