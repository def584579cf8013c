// What verify will not call equal, and a model that shows why (models/pi05).
#include "pi05_training.h"
#include "verify_support.h"

namespace retape::testing {
namespace {

TEST(VerifyVacuity, GradientsAreDisabled) {
  torch::NoGradGuard no_grad;
  EXPECT_VACUOUS(verify(step_of(square_sin)), "gradients are disabled (no_grad)");
}

TEST(VerifyVacuity, NoLossRequiresAGradient) {
  EXPECT_VACUOUS(
      verify(step_of([](const Tensor& w) {
        torch::NoGradGuard no_grad;
        return square_sin(w);
      })),
      "no loss requires a gradient");
}

TEST(VerifyVacuity, ThePolicyDropsNothing) {
  VerifyOptions options;
  options.policy = Policy::none();
  EXPECT_VACUOUS(
      verify(step_of(square_sin), options), "nothing was replayed: policy none drops nothing");
}

TEST(VerifyVacuity, NothingIsRecomputedInAPlainStep) {
  EXPECT_VACUOUS(
      verify(step_of(square_sin), by_itself()), "no scope, checkpoint or layer was entered");
}

TEST(VerifyVacuity, LayersAreOffInEvalMode) {
  auto block = made();
  enable(*block);
  block->eval();
  const auto x = leaf({3, 5, 8});
  EXPECT_VACUOUS(
      verify(
          *block, [&] { return block->forward(x).square().mean(); }, by_itself()),
      "in eval mode layers are plain");
}

TEST(VerifyVacuity, EverythingThatIsNeededWasKept) {
  EXPECT_VACUOUS(
      verify(step_of([](const Tensor& w) { return (w * 2).sum(); })),
      "backward found all that it needed kept");
}

TEST(VerifyVacuity, ARegionNeverRan) {
  VerifyOptions options;
  options.regions = {"step", "decoder"};
  EXPECT_VACUOUS(
      verify(step_of(square_sin), options), "region \"decoder\" never ran; these did: \"step\"");
}

TEST(VerifyVacuity, OfARegionNothingWasRecomputed) {
  auto options = by_itself();
  options.regions = {"busy", "idle"};
  const auto verdict = verify(
      step_of([](const Tensor& w) {
        CheckpointOptions busy, idle;
        busy.name = "busy";
        idle.name = "idle";
        const auto h = checkpoint(busy, [](const Tensor& x) { return x.square().sin(); }, w);
        return checkpoint(idle, [](const Tensor& x) { return (x * 2).sum(); }, h);
      }),
      options);
  EXPECT_VACUOUS(verdict, "region \"idle\" ran, but nothing of it was recomputed");
  EXPECT_EQ(verdict.vacuous.size(), 1u);
}

TEST(VerifyVacuity, ALeafIsDeadInBothRuns) {
  const auto unused = leaf({2}), zero = leaf({2}), nan = leaf({2});
  const auto step = step_of(
      [=](const Tensor& w) {
        return square_sin(w) + (zero * 0).sum() +
            (nan * std::numeric_limits<float>::quiet_NaN()).sum();
      },
      {{"block.unused", unused}, {"block.zero", zero}, {"nan", nan}, {"data", torch::ones({2})}});
  const auto verdict = verify(step);
  EXPECT_VACUOUS(verdict, "leaf \"block.unused\" has no gradient in either run");
  EXPECT_VACUOUS(verdict, "leaf \"block.zero\" has an all-zero gradient in both runs");
  EXPECT_VACUOUS(verdict, "leaf \"nan\" has nothing but NaN");
  EXPECT_EQ(verdict.vacuous.size(), 3u) << "what requires no gradient is not missed";
  VerifyOptions options;
  options.may_be_dead = {"block.*", "nan"};
  EXPECT_EQ(verify(step, options).kind, Kind::Equal) << "it was declared";
}

TEST(VerifyVacuity, ThePlainRunDiffersFromItself) {
  const auto count = std::make_shared<int>(0);
  const auto step = step_of([=](const Tensor& w) { return square_sin(w) * ++*count; });
  const auto verdict = verify(step);
  EXPECT_VACUOUS(verdict, "the plain run differs from itself in loss \"loss\": 1 of 1 element");
  EXPECT_TRUE(verdict.differences.empty());
  VerifyOptions options;
  options.plain_twice = false;
  EXPECT_EQ(verify(step, options).kind, Kind::Different);
}

TEST(VerifyPi05, TheFlowLossAloneIsVacuousBehindInsulation) {
  TrainingStep step;
  step.order = Order::MseOnly;
  const auto verdict = verify(
      subject_of(step, {"each layer replayed", pi05::replayed(), {}}), by_itself());
  EXPECT_EQ(verdict.kind, Kind::Vacuous);
  EXPECT_EQ(verdict.vacuous.size(), 32u) << "parameters that get no gradient";
}

TEST(VerifyPi05, ALayerThatIsRunAgainIsDifferent) {
  TrainingStep step;
  step.config.insulation = false;
  const auto again = [](const pi05::LayerFunction& run, const pi05::LayerCall& call) {
    if (!is_eager() && call.use == pi05::CacheUse::Read) {
      auto& entry = call.cache->at(call.layer);
      entry.key = entry.key.detach();  // what a reentrant second run leaves of the cache
    }
    return pi05::replayed()(run, call);
  };
  const auto verdict = verify(subject_of(step, {"run again", again, {}}), by_itself());
  EXPECT_EQ(verdict.kind, Kind::Different);
  EXPECT_TRUE(
      std::all_of(
          verdict.differences.begin(), verdict.differences.end(), [](const auto& difference) {
            return difference.what == "gradient";
          }));
}

}  // namespace
}  // namespace retape::testing
