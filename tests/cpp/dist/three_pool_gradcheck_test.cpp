// The three-pool trainer through GradCheck itself: every term alone and all together, ragged too,
// steps of the optimizer, a narrower wire, and every contribution broken in every way.
#include "ranks.h"

#include <retape/dist/gradcheck.h>
#include <three_pool/trainer.h>

#include <algorithm>

namespace retape::dist {
namespace {

using Kind = Verdict::Kind;

GradCheckOptions three_pool_options() {
  const auto coefficients = three_pool::all_terms();
  GradCheckOptions options;
  options.terms = {
      {"faith", coefficients.at("faith"), {"V.*", "U.*"}},
      {"imp", coefficients.at("imp"), {"theta.*"}},
      {"stoch", coefficients.at("stoch"), {"*"}, true},
      {"ppgd", coefficients.at("ppgd"), {"*"}, true}};
  options.topologies = {
      {"1,1x2,1", three_pool::make_topology({1, 1, 2, 1})},
      {"6,3x1,2", three_pool::make_topology({6, 3, 1, 2})},
      {"2,4x1,5", three_pool::make_topology({2, 4, 1, 5})}};
  options.wire = at::kBFloat16;
  options.steps = 2;
  options.seed = 7;
  return options;
}

TEST(ThreePoolGradCheck, IsEqualAndEveryMutantIsKilledWithItsPredictedRatio) {
  testing::expect_ranks(11, [](World& world) {
    const auto report = GradCheck(
                            world.all(),
                            [](const Case& what) { return three_pool::reference(what); },
                            [&](const Case& what) { return three_pool::distributed(what, world); },
                            three_pool_options())
                            .run();
    if (!report) {
      throw std::runtime_error(report.text());
    }
    if (world.rank() > 0) {
      return;
    }
    for (const auto& [term, weight] : three_pool::all_terms()) {
      RANK_EXPECT(
          std::any_of(report.rows.begin(), report.rows.end(), [&, name = term](const GradRow& row) {
            return row.what == "loss" && row.tensor == name;
          }));
    }
    RANK_EXPECT_EQ(report.mutated, "6,3x1,2");
    RANK_EXPECT(report.mutants.size() >= 100);
    RANK_EXPECT_EQ(report.killed(), static_cast<int>(report.mutants.size()));
    for (const auto& mutant : report.mutants) {
      RANK_EXPECT(!mutant.predicted || mutant.as_predicted());
    }
  });
}

// A check that was shipped with such a trainer compared all four terms together, of which two were
// about a hundred-millionth of the gradients: they could be wrong by any factor.
TEST(ThreePoolGradCheck, TermsTooSmallToBeSeenAreVacuousAndNotPassed) {
  testing::expect_ranks(6, [](World& world) {
    auto options = three_pool_options();
    const std::vector<double> coefficients{3, 0.7, 5e-8, 2e-8};
    for (size_t i = 0; i < options.terms.size(); ++i) {
      options.terms[i].coefficient = coefficients[i];
    }
    options.topologies = {
        {"1,1x1,1", three_pool::make_topology({1, 1, 1, 1})},
        {"3,2x1,1", three_pool::make_topology({3, 2, 1, 1})},
        {"1,2x1,3", three_pool::make_topology({1, 2, 1, 3})}};
    options.wire.reset();
    options.steps = 0;
    options.ragged = false;
    options.mutations = false;
    const auto check = [&](double factor) {
      const auto distributed = [&](Case what) {
        what.terms["stoch"] *= factor;
        return three_pool::distributed(what, world);
      };
      return GradCheck(
                 world.all(),
                 [](const Case& what) { return three_pool::reference(what); },
                 distributed,
                 options)
          .run();
    };
    const auto right = check(1);
    RANK_EXPECT_EQ(right.exit_code(), 6);
    RANK_EXPECT(right.vacuous.empty());  // it is for the rows
    for (const auto& row : right.rows) {
      if (row.what != "gradient") {
        continue;
      }
      const bool small = row.terms == "stoch" || row.terms == "ppgd";
      const auto expected = small && row.dtype == "float32" ? Kind::Vacuous : Kind::Equal;
      RANK_EXPECT_EQ(row.tensor + " " + name_of(row.kind), row.tensor + " " + name_of(expected));
      RANK_EXPECT(
          row.kind == Kind::Equal || testing::contains(row.reason, "it cannot be seen there"));
    }
    // All terms together show nothing of a factor in one of them; alone it is plain.
    const auto wrong = check(16);
    RANK_EXPECT_EQ(wrong.exit_code(), 1);
    for (const auto& row : wrong.rows) {
      if (row.dtype == "float32" && row.terms == "all") {
        RANK_EXPECT(row.kind == Kind::Equal);
      }
      if (row.terms == "stoch" && row.what == "gradient") {
        RANK_EXPECT(row.kind == Kind::Different && std::abs(row.alpha - 16) < 1e-4);
      }
    }
  });
}

}  // namespace
}  // namespace retape::dist
