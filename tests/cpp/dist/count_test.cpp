#include "ranks.h"

#include <retape/retape.h>

namespace retape::dist {
namespace {

using testing::error_of;
using testing::expect_ranks;
using testing::same_bits;

TEST(GlobalCount, GradientsOfANormalizedSumAreThoseOfTheMeanOverAll) {
  expect_ranks(3, [](World& world) {
    // Ragged: rank r has r + 1 rows.
    const auto x = torch::arange(12, torch::kDouble).view({6, 2});
    const auto w = torch::ones({2}, torch::TensorOptions(torch::kDouble).requires_grad(true));
    const int64_t first = world.rank() * (world.rank() + 1) / 2, rows = world.rank() + 1;
    const auto losses = x.narrow(0, first, rows).mv(w).square();
    const auto count = count_global("rows", rows, world.all());
    RANK_EXPECT_EQ(count.value(), int64_t{6});
    normalize(losses.sum(), count).value().backward();
    SumReducer reducer(world.all());
    reducer.add_gradients({{"w", w}});
    reducer.reduce();
    const auto v = torch::ones({2}, torch::TensorOptions(torch::kDouble).requires_grad(true));
    x.mv(v).square().mean().backward();
    RANK_EXPECT(torch::allclose(w.grad(), v.grad(), 1e-14));
  });
}

TEST(GlobalCount, NothingToDivideByIsAnErrorOnEveryRank) {
  expect_ranks(2, [](World& world) {
    std::string text;
    try {
      count_global("tokens", 0, world.all());
    } catch (const UsageError& error) {
      text = error.what();
    }
    RANK_EXPECT_TEXT(text, "there is nothing to divide by");
    try {
      count_global("tokens", world.rank() == 0 ? -1 : 5, world.all());
    } catch (const UsageError& error) {
      text = error.what();
    }
    RANK_EXPECT_TEXT(text, "a rank counts less than none");
    RANK_EXPECT_EQ(
        count_global("tokens", world.rank(), world.all()).value(), int64_t{1});  // one has none
  });
}

TEST(StepCounts, AllCountsOfAStepTravelInOneSum) {
  expect_ranks(2, [](World& world) {
    const StepCounts counts(
        {{"tokens", 10 + world.rank()}, {"images", world.rank()}, {"words", 0}}, world.all());
    RANK_EXPECT_EQ(counts["tokens"].value(), int64_t{21});
    RANK_EXPECT_EQ(counts["images"].value(), int64_t{1});
    RANK_EXPECT(counts["images"].ranks() == world.all().ranks());
    const auto refused = [&](const std::string& name) {
      try {
        counts[name];
      } catch (const UsageError& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    RANK_EXPECT_TEXT(refused("words"), "there is nothing to divide by");
    RANK_EXPECT_TEXT(refused("rows"), "was not counted", "images, tokens, words");
    const auto told = error_of([&] {
      world.rank() == 0 ? StepCounts({{"tokens", 1}, {"images", 1}}, world.all())
                        : StepCounts({{"tokens", 1}}, world.all());
    });
    RANK_EXPECT_TEXT(
        told, "rank 0 would sum \"count tokens, images\"", "rank 1 would sum \"count tokens\"");
  });
}

TEST(StepCounts, WhatIsNoCountIsAnErrorOnEveryRank) {
  expect_ranks(2, [](World& world) {
    const auto refused = [&](const std::vector<std::pair<std::string, int64_t>>& local) {
      try {
        StepCounts(local, world.all());
      } catch (const UsageError& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    RANK_EXPECT_TEXT(
        refused({{"tokens", 3}, {"images", world.rank() ? -1 : 1}}),
        "a rank counts less than none");
    RANK_EXPECT_TEXT(refused({{"tokens", 3}, {"tokens", 1}}), "\"tokens\" is counted twice");
  });
}

TEST(GlobalCount, OfOtherRanksIsNoDenominatorOfAGroup) {
  expect_ranks(3, [](World& world) {
    const auto pair = world.rank() < 2 ? world.group("pair", {1, 0}) : Group::alone("self", 2);
    const auto sum = torch::full({1}, 6.0);
    RANK_EXPECT_EQ(
        normalize(sum, count_global("rows", 1, world.all()), world.all()).value().item<double>(),
        2.0);
    const auto count = count_global("rows", 1, pair);
    RANK_EXPECT_EQ(normalize(sum, count).value().item<double>(), world.rank() < 2 ? 3.0 : 6.0);
    try {
      normalize(sum, count, world.all());
    } catch (const UsageError& error) {
      RANK_EXPECT_TEXT(
          error.what(),
          world.rank() < 2 ? "that of ranks 1 and 0" : "that of rank 2",
          "ranks 0, 1 and 2");
      return;
    }
    RANK_EXPECT(!"raised");
  });
}

TEST(GlobalMean, IsTheSumOverAllByTheCountOverAll) {
  expect_ranks(3, [](World& world) {
    // Rank r has r numbers, which are r: a mean of means would be (0 + 1 + 2) / 3, and rank 0 has
    // none.
    const double rank = world.rank();
    RANK_EXPECT_EQ(global_mean("loss", rank * rank, world.rank(), world.all()), 5.0 / 3);
  });
}

TEST(GlobalMean, OfNothingIsAnErrorOnEveryRank) {
  expect_ranks(2, [](World& world) {
    for (const int64_t count : {0, world.rank() == 0 ? 3 : -1}) {
      std::string text;
      try {
        global_mean("loss", 1, count, world.all());
      } catch (const UsageError& error) {
        text = error.what();
      }
      RANK_EXPECT_TEXT(
          text, "[global_mean] \"loss\" counts", "expected at least 0 on each, and 1 in all");
    }
  });
}

TEST(GlobalResidual, ValueIsGlobalAndGradientIsLocal) {
  expect_ranks(3, [](World& world) {
    const auto local = torch::full({2}, world.rank() + 1.0, torch::requires_grad());
    const auto total = global_residual("usage", local, world.all());
    RANK_EXPECT(same_bits(total.detach(), torch::full({2}, 6.0)));
    (total * total).sum().backward();  // every rank computes the same loss
    RANK_EXPECT(same_bits(local.grad(), torch::full({2}, 12.0)));
  });
}

TEST(GlobalResidual, DoubleBackward) {
  const auto group = Group::alone("alone");
  const auto x = torch::full({2}, 3.0, torch::requires_grad());
  const auto first = torch::autograd::grad(
      {global_residual("x", x, group).pow(3).sum()}, {x}, {}, true, true)[0];
  // The outer gradient reaches x through `first`'s incoming gradient only.
  EXPECT_TRUE(same_bits(first.detach(), torch::full({2}, 27.0)));
  EXPECT_TRUE(same_bits(torch::autograd::grad({first.sum()}, {x})[0], torch::full({2}, 18.0)));
}

// A sum over ranks is no op that could be replayed: what it gave is held.
TEST(GlobalResidual, InsideARecomputeScopeTheSumIsMadeOnce) {
  expect_ranks(2, [](World& world) {
    const auto step = [&](bool recompute) {
      const auto x = torch::arange(4.0).add(world.rank()).requires_grad_();
      at::Tensor loss;
      const auto forward = [&] {
        const auto total = global_residual("usage", x.sin(), world.all());
        loss = (total.exp().tanh() * x).sum();
      };
      if (recompute) {
        Recompute scope(Policy::full());
        forward();
      } else {
        forward();
      }
      loss.backward();
      return x.grad();
    };
    RANK_EXPECT(same_bits(step(true), step(false)));
    world.all().barrier("as many calls on both");
  });
}

TEST(ClipGradNorm, CountsEveryDistinctParameterOnce) {
  expect_ranks(3, [](World& world) {
    const auto shared = torch::zeros({2}, torch::requires_grad());
    const auto own = torch::zeros({3}, torch::requires_grad());
    shared.mutable_grad() = torch::full({2}, 3.0);
    own.mutable_grad() = torch::full({3}, world.rank() + 1.0);
    const auto self = Group::alone("self", world.rank());
    // `shared` is given twice: tied weights.
    const auto norm = clip_grad_norm(
        {{{shared, shared}, world.all()}, {{own}, self}}, 1.0, world.all());
    const double expected = std::sqrt(2 * 9.0 + 3 * (1 + 4 + 9));
    RANK_EXPECT(std::abs(norm - expected) < 1e-12);
    RANK_EXPECT(torch::allclose(shared.grad(), torch::full({2}, 3.0 / (expected + 1e-6))));
    RANK_EXPECT(
        torch::allclose(own.grad(), torch::full({3}, (world.rank() + 1.0) / (expected + 1e-6))));
  });
}

TEST(ClipGradNorm, OfComplexGradients) {
  const auto parameter = torch::zeros({1}, torch::dtype(torch::kComplexFloat).requires_grad(true));
  parameter.mutable_grad() = torch::full({1}, c10::complex<float>(0, 5), torch::kComplexFloat);
  const auto all = Group::alone("all");
  EXPECT_NEAR(clip_grad_norm({{{parameter}, all}}, 2.5, all), 5, 1e-6);
  EXPECT_NEAR(at::imag(parameter.grad()).item<float>(), 2.5, 1e-6);
}

TEST(ClipGradNorm, RefusesWhatIsNoNorm) {
  const auto all = Group::alone("all");
  for (const double type : {0.0, -1.0, std::nan("")}) {
    ClipOptions options;
    options.norm_type = type;
    EXPECT_THROW(clip_grad_norm({}, 1, all, options), UsageError) << type;
  }
}

TEST(ClipGradNorm, TheNormOfTorch) {
  const auto a = torch::zeros({3, 2}, torch::requires_grad()),
             b = torch::zeros({5}, torch::requires_grad());
  for (const double type : {2.0, 1.0, 3.0, std::numeric_limits<double>::infinity()}) {
    a.mutable_grad() = torch::randn({3, 2});
    b.mutable_grad() = torch::randn({5});
    const auto a_before = a.grad().clone();
    ClipOptions options;
    options.norm_type = type;
    const auto ours = clip_grad_norm(
        {{{a, b}, Group::alone("self")}}, 0.5, Group::alone("all"), options);
    const auto after = a.grad().clone();
    a.mutable_grad() = a_before;
    b.mutable_grad().div_(after.flatten()[0] / a_before.flatten()[0]);
    const auto theirs = torch::nn::utils::clip_grad_norm_({a, b}, 0.5, type);
    EXPECT_NEAR(ours, theirs, 1e-5) << type;
    EXPECT_TRUE(torch::allclose(after, a.grad())) << type;
  }
}

TEST(ClipGradNorm, ANormThatIsNotANumberIsSeenInEveryGradient) {
  for (const double type : {2.0, std::numeric_limits<double>::infinity()}) {
    const auto good = torch::zeros({2}, torch::requires_grad()),
               bad = torch::zeros({1}, torch::requires_grad());
    good.mutable_grad() = torch::full({2}, 3.0);
    bad.mutable_grad() = torch::full({1}, std::numeric_limits<double>::quiet_NaN());
    ClipOptions options;
    options.norm_type = type;
    const auto group = Group::alone("self");
    EXPECT_TRUE(std::isnan(clip_grad_norm({{{good, bad}, group}}, 1.0, group, options)));
    EXPECT_TRUE(good.grad().isnan().all().item<bool>());  // as torch's
  }
}

TEST(ClipGradNorm, ANormThatIsNotFiniteRaisesOnRequest) {
  const auto p = torch::zeros({1}, torch::requires_grad());
  p.mutable_grad() = torch::full({1}, std::numeric_limits<double>::infinity());
  ClipOptions options;
  options.error_if_nonfinite = true;
  const auto group = Group::alone("self");
  EXPECT_THROW(clip_grad_norm({{{p}, group}}, 1.0, group, options), UsageError);
}

}  // namespace
}  // namespace retape::dist
