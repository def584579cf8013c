// The three-pool trainer through GradCheck itself: every term alone and all together, ragged too, steps of
// the optimizer, a narrower wire, and every contribution broken in every way.
#include "ranks.h"

#include <retape/dist/gradcheck.h>
#include <three_pool/trainer.h>

namespace retape::dist {
namespace {

GradCheckOptions three_pool_options() {
  const auto coefficients = three_pool::all_terms();
  GradCheckOptions options;
  options.terms = {
      {"faith", coefficients.at("faith"), {"V.*", "U.*"}},
      {"imp", coefficients.at("imp"), {"theta.*"}},
      {"stoch", coefficients.at("stoch"), {"*"}, true},
      {"ppgd", coefficients.at("ppgd"), {"*"}, true}};
  options.topologies = {
      {"1,1x2,1", three_pool::make_topology({1, 1, 2, 1})}, {"6,3x1,2", three_pool::make_topology({6, 3, 1, 2})}};
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
    RANK_EXPECT(report.mutants.size() >= 100);
    RANK_EXPECT_EQ(report.killed(), static_cast<int>(report.mutants.size()));
    for (const auto& mutant : report.mutants) {
      RANK_EXPECT(!mutant.predicted || mutant.as_predicted());
    }
  });
}

}  // namespace
}  // namespace retape::dist
