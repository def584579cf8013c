// What goes on the tape, and comes back bit for bit.
#include "support.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ScalarOps.h>
#include <ATen/autocast_mode.h>

namespace retape::testing {
namespace {

TEST(Record, ChainOfPointwiseOps) {
  expect_same(
      [](const auto& x) { return (x[0] * 2).sin().exp().tanh().sigmoid().sum(); }, {leaf({5, 7})});
}

TEST(Record, SavedOutputsAreBoundWhenTheirOpEnds) {
  expect_same(
      [](const auto& x) {
        return torch::softmax(x[0] * 3, -1).mul(torch::rsqrt(x[0].exp() + 1)).sum();
      },
      {leaf({4, 9})});
}

TEST(Record, MultiOutputOps) {
  expect_same(
      [](const auto& x) {
        const auto parts = (x[0] * 2).split(3, 1);
        const auto [values, indices] = torch::topk(parts[0].sin(), 2);
        const auto normed = torch::native_layer_norm(parts[1].contiguous(), {3}, {}, {}, 1e-5);
        return values.exp().sum() + std::get<0>(normed).square().sum() + parts[2].sin().sum();
      },
      {leaf({4, 9})});
}

TEST(Record, AResultThatIsAskedForFirstIsNotTheFirstResult) {
  expect_same(
      [](const auto& x) {
        const auto [y, mean, rstd] = torch::native_layer_norm(x[0] * 2, {9}, {}, {}, 1e-5);
        return (y * x[1]).sum();  // saves nothing of y; its own backward wants the other two
      },
      {leaf({4, 9}), leaf({4, 9}, 8).detach()});
}

TEST(Record, ListAndOptionalListArguments) {
  expect_same(
      [](const auto& x) {
        auto joined = torch::cat({x[0] * 2, x[0].sin(), x[1] * 3}).exp();
        const auto rows = torch::tensor({2, 0, 1, 1});
        const c10::List<std::optional<Tensor>> places({rows, std::optional<Tensor>()});
        joined = torch::index_put(joined, places, x[1].sum()).sin();
        return torch::stack({joined.index({rows}).sin(),
                             joined.index({rows, torch::indexing::Slice()}).cos()})
            .square()
            .sum();
      },
      {leaf({3, 4}), leaf({2, 4}, 8)});
}

TEST(Record, InPlaceMakesANewVersion) {
  expect_same(
      [](const auto& x) {
        auto y = x[0] * 2;
        const auto before = y.sum();
        y.mul_(3).add_(x[0]);
        return y.sin().sum() + before;
      },
      {leaf({4, 4})});
}

TEST(Record, OldVersionIsStillThereForWhatReadIt) {
  expect_same(
      [](const auto& x) {
        auto y = x[0] + 1;       // add saves nothing
        auto z = (y * 2).exp();  // reads the first version
        y.mul_(5);
        return (z.sin() * y.cos()).sum();
      },
      {leaf({4, 4})});
}

TEST(Record, PartialWriteBringsBackTheWholeStorage) {
  expect_same(
      [](const auto& x) {
        auto buffer = torch::cat({x[0], x[0], x[0]}).detach() * 0;
        buffer.slice(0, 1, 3).copy_(x[0].sin());
        buffer.select(1, 2).mul_(2);
        buffer[5].fill_(0.5);
        return (buffer * 3).exp().sum() + buffer.slice(0, 4).sin().sum();
      },
      {leaf({2, 4})});
}

TEST(Record, WriteIntoAGivenTensorIsSeenOnce) {
  auto given = torch::zeros({3});
  const auto x = leaf({3});
  Recompute scope(drop_all());
  auto y = (x + given).exp();  // reads the first version of what was given
  given.add_(1);
  auto loss = (y.sin() * given).sum();
  scope.close();
  loss.backward();
  EXPECT_TRUE(same_bits(given, torch::ones({3})));
  const auto expected = torch::autograd::grad({(x.exp().sin() * torch::ones({3})).sum()}, {x})[0];
  EXPECT_TRUE(same_bits(x.grad(), expected));
}

TEST(Record, OutVariantsUnderNoGrad) {
  expect_same(
      [](const auto& x) {
        auto target = torch::zeros({4, 4});
        {
          torch::NoGradGuard guard;
          torch::mm_out(target, x[0], x[0].t());
        }
        return (x[0].mm(target.sin()) * 2).exp().sum();
      },
      {leaf({4, 4})});
}

TEST(Record, ReadAndWriteOfOneStorageInOneOp) {
  expect_same(
      [](const auto& x) {
        auto y = x[0].detach() * 2;
        y.mul_(y).addcmul_(y, y);
        return (y.sin() * x[0]).exp().sum();
      },
      {leaf({3, 3})});
}

TEST(Record, ForeachWritesManyStorages) {
  expect_same(
      [](const auto& x) {
        std::vector<Tensor> ys{x[0] * 2, x[0] * 3};
        {
          torch::NoGradGuard guard;
          at::_foreach_add_(ys, 1.0);
        }
        return (ys[0].detach() * x[0]).sin().sum() + (ys[1].detach() * x[0]).cos().sum();
      },
      {leaf({3, 3})});
}

TEST(Record, DataAliasWriteIsSeenAsAutogradSeesIt) {
  // .data shares bytes but not the version counter: plain autograd hands out the changed bytes.
  expect_same(
      [](const auto& x) {
        auto y = x[0] * 2;
        auto z = y.sin();
        y.data().mul_(3);
        return z.sum();
      },
      {leaf({3})},
      /*replays=*/false);
}

TEST(Record, BatchNormMovesItsStatisticsOnce) {
  auto mean = torch::zeros({4});
  auto var = torch::ones({4});
  const auto step = [&](const auto& x) {
    return torch::batch_norm(x[0] * 2, x[1], x[2], mean, var, true, 0.1, 1e-5, false).sin().sum();
  };
  const std::vector<Tensor> leaves{leaf({8, 4}), leaf({4}, 8), leaf({4}, 9)};
  const auto plain = run(step, leaves, nullptr);
  const auto mean_once = mean.clone();
  const auto var_once = var.clone();
  for (const auto& policy : {drop_all(), Policy::cheap()}) {
    mean.zero_();
    var.fill_(1);
    const auto other = run(step, leaves, &policy);
    EXPECT_GT(other.stats.ops_replayed, 0u);
    EXPECT_TRUE(same_bits(mean, mean_once));
    EXPECT_TRUE(same_bits(var, var_once));
    for (size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_TRUE(same_bits(plain.grads[i], other.grads[i]));
    }
  }
}

TEST(Record, DropoutFromTheDefaultGenerator) {
  expect_same(
      [](const auto& x) {
        auto y = torch::dropout(x[0] * 2, 0.5, true).sin();
        return torch::dropout(y.exp(), 0.3, true).square().sum();
      },
      {leaf({16, 16})});
}

TEST(Record, DropoutThatTakesNoGenerator) {
  for (const auto train : {std::optional<bool>(true), std::optional<bool>()}) {
    expect_same(
        [&](const auto& x) {
          const auto [y, mask] = at::native_dropout(x[0] * 2, 0.5, train);
          return (y.sin() * torch::rand({16, 16})).sum();
        },
        {leaf({16, 16})});
  }
}

TEST(Record, NumbersThatBecameTensorsPromoteAsNumbers) {
  // An integer times a number is a float, times a tensor of that number a double.
  expect_same(
      [](const auto& x) {
        const auto y = at::mul(x[1], at::native::wrapped_scalar_tensor(2.5));
        EXPECT_EQ(y.scalar_type(), torch::kFloat);
        return (x[0] * y).sin().sum();
      },
      {leaf({4, 4}), torch::arange(16).view({4, 4})});
}

TEST(Record, AnOpWithManyInputs) {
  expect_same(
      [](const auto& x) {
        std::vector<Tensor> parts;
        for (int i = 0; i < 40; ++i) {
          parts.push_back(x[0] * i);
        }
        return torch::cat(parts).sin().sum();
      },
      {leaf({3, 4})});
}

TEST(Record, NoiseFromAPrivateGenerator) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
  const auto step = [&](const auto& x) {
    generator.set_current_seed(3);
    auto mask = torch::empty({16, 16}).bernoulli_(0.5, generator);
    return ((x[0] * 2) * mask).sin().mul(torch::randn({16, 16}, generator)).sum();
  };
  expect_same(step, {leaf({16, 16})});
}

TEST(Record, RReluNoiseIsWhatItsKernelWrote) {
  expect_same(
      [](const auto& x) { return torch::rrelu(x[0] * 2, 0.1, 0.4, true).sin().sum(); },
      {leaf({16, 16})});
}

TEST(Record, UninitializedMemoryIsNeverReplayed) {
  // Written behind the dispatcher's back: what is there is what counts.
  expect_same(
      [](const auto& x) {
        auto hidden = torch::empty({4});
        std::fill_n(hidden.template data_ptr<float>(), 4, 0.25f);
        return (hidden * x[0]).sin().sum() + (hidden.sin() * x[0]).sum();
      },
      {leaf({4})});
}

TEST(Record, CastsOfAutocastAreOpsOnTheTape) {
  expect_same(
      [](const auto& x) {
        at::autocast::set_autocast_enabled(at::kCPU, true);
        at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
        auto y = torch::linear(x[0] * 2, x[1]).sin();
        y = y.mm(x[1]);
        at::autocast::clear_cache();
        at::autocast::set_autocast_enabled(at::kCPU, false);
        return y.to(torch::kFloat).sum();
      },
      {leaf({4, 4}), leaf({4, 4}, 8)});
}

TEST(Record, SharedWeightsAndNoGradIslands) {
  expect_same(
      [](const auto& x) {
        auto y = x[0];
        for (int i = 0; i < 4; ++i) {
          y = torch::gelu(y.mm(x[1]));
          torch::NoGradGuard guard;
          y = y + (y.abs().mean() * 0.01);
        }
        y = y.detach() + x[0].mm(x[1]).sin();
        return (y * x[1]).exp().sum();
      },
      {leaf({4, 4}), leaf({4, 4}, 8)});
}

TEST(Record, ComplexAndConjugateViews) {
  expect_same(
      [](const auto& x) {
        auto z = torch::complex(x[0] * 2, x[0].sin());
        return torch::real(z.conj() * z.exp()).sum() + torch::imag(z.mm(z.mH())).sin().sum();
      },
      {leaf({3, 3})});
}

TEST(Record, ValuesUsedAfterTheScopeAreRight) {
  const auto x = leaf({4});
  Tensor y;
  {
    Recompute scope(drop_all());
    y = (x * 2).exp().sin();
  }
  (y * y.cos()).sum().backward();
  const auto again = x.detach().clone().set_requires_grad(true);
  const auto z = (again * 2).exp().sin();
  (z * z.cos()).sum().backward();
  EXPECT_TRUE(same_bits(x.grad(), again.grad()));
}

TEST(Record, StatisticsThatReplayWouldMoveAreNotTheCallers) {
  // Too large for the tape to copy: what replay updates is memory of its own.
  const int64_t channels = (1 << 16) + 8;
  auto mean = torch::zeros({channels});
  auto var = torch::ones({channels});
  const std::vector<Tensor> leaves{leaf({2, channels}), leaf({channels}, 8), leaf({channels}, 9)};
  const auto policy = drop_all();
  const auto once = [&](const Policy* how) {
    mean.zero_();
    var.fill_(1);
    const auto outcome = run(
        [&](const auto& x) {
          return torch::batch_norm(x[0] * 2, x[1], x[2], mean, var, true, 0.1, 1e-5, false)
              .sin()
              .sum();
        },
        leaves,
        how);
    return std::make_tuple(mean.clone(), var.clone(), outcome.grads[0], outcome.stats.ops_replayed);
  };
  const auto [plain_mean, plain_var, plain_grad, none] = once(nullptr);
  const auto [other_mean, other_var, other_grad, replayed] = once(&policy);
  EXPECT_EQ(replayed, 2u);  // mul, batch_norm
  EXPECT_TRUE(same_bits(plain_mean, other_mean));
  EXPECT_TRUE(same_bits(plain_var, other_var));
  EXPECT_TRUE(same_bits(plain_grad, other_grad));
}

TEST(Record, BatchNormWhoseSchemaSaysThatItWritesIsReplayedToo) {
  auto mean = torch::zeros({4});
  auto var = torch::ones({4});
  const auto step = [&](const auto& x) {
    const auto y = at::_native_batch_norm_legit(x[0] * 2, x[1], x[2], mean, var, true, 0.1, 1e-5);
    return std::get<0>(y).sin().sum();
  };
  const std::vector<Tensor> leaves{leaf({8, 4}), leaf({4}, 8), leaf({4}, 9)};
  const auto plain = run(step, leaves, nullptr);
  const auto mean_once = mean.clone();
  mean.zero_();
  var.fill_(1);
  const auto policy = drop_all();
  const auto other = run(step, leaves, &policy);
  EXPECT_EQ(other.stats.ops_replayed, 2u);
  EXPECT_TRUE(same_bits(mean, mean_once));
  EXPECT_TRUE(same_bits(plain.grads[0], other.grads[0]));
}

TEST(Record, BatchNormInEvaluationReadsItsStatistics) {
  const auto mean = leaf({4}, 3).detach();
  const auto var = leaf({4}, 4).detach().square() + 1;
  expect_same(
      [&](const auto& x) {
        return torch::batch_norm(x[0] * 2, x[1], x[2], mean, var, false, 0.1, 1e-5, false)
            .sin()
            .sum();
      },
      {leaf({8, 4}), leaf({4}, 8), leaf({4}, 9)});
}

TEST(Record, SmallVectorsAreReplayedFromAsForwardHadThem) {
  // Running statistics are written without a trace.
  const auto gradient = [](bool recompute) {
    const auto x = leaf({8, 4});
    auto statistic = leaf({4}, 3).detach();
    Tensor loss;
    {
      std::optional<Recompute> scope;
      if (recompute) {
        scope.emplace(drop_all());
      }
      loss = (x * 2 + statistic).sin().sum();
    }
    std::fill_n(statistic.data_ptr<float>(), 4, 100.0f);
    loss.backward();
    return x.grad();
  };
  EXPECT_TRUE(same_bits(gradient(false), gradient(true)));
}

TEST(Record, OnlySmallVectorsWithoutGradientAreCopied) {
  const int64_t most = 1 << 16;  // floats
  const auto copied = [](const Tensor& given) {
    const auto x = leaf(given.sizes());
    MemoryMeter meter;
    Recompute scope(drop_all());
    const auto y = (x + given).sin().sin().sin().sum();  // saves more than was given
    scope.close();
    return meter.current() > 100;
  };
  EXPECT_TRUE(copied(torch::ones({1024})));
  EXPECT_TRUE(copied(torch::ones({most})));
  EXPECT_FALSE(copied(torch::ones({most + 1})));
  EXPECT_FALSE(copied(torch::ones({1024, 1})));
  EXPECT_FALSE(copied(torch::ones({1024}, torch::kLong)));
  EXPECT_FALSE(copied(leaf({1024})));
  EXPECT_FALSE(copied(leaf({1024}) * 2));
}

TEST(Record, AnOutVariantThatReadsWhatItOverwrites) {
  expect_same(
      [](const auto& x) {
        auto y = x[0].detach() * 2;
        torch::mul_out(y, y, y);
        torch::add_out(y, y, x[0].detach());
        return (y.sin() * x[0]).exp().sum();
      },
      {leaf({3, 3})});
}

TEST(Record, AnOutVariantThatReadsMemoryThatNobodyWrote) {
  expect_same(
      [](const auto& x) {
        auto y = torch::zeros({3, 3});
        torch::add_out(y, y, x[0].detach());
        return (y.sin() * x[0]).exp().sum();
      },
      {leaf({3, 3})},
      /*replays=*/true);
}

TEST(Record, ValuesStayKnownHoweverManyThereAre) {
  const auto x = leaf({4});
  Recompute scope(drop_all());
  std::vector<Tensor> made;
  for (int i = 1; i <= 300; ++i) {
    made.push_back(x * i);
  }
  Tensor total = torch::zeros({});
  for (const auto& tensor : made) {
    total = total + tensor.sin().sum();
  }
  EXPECT_EQ(scope.stats().values_dropped, 300u);
}

TEST(Record, WhatIsGoneIsForgottenWhileTheScopeIsOpen) {
  MemoryMeter meter;
  Recompute scope(drop_all());
  for (int i = 0; i < 2000; ++i) {
    torch::zeros({1024}) + 1;  // its recipe holds what it reads
  }
  EXPECT_LT(meter.current(), 200 * 4096);
}

TEST(Record, AWriteThatFailsIsTakenForAWrite) {
  expect_same(
      [](const auto& x) {
        auto y = x[0].detach() * 2;
        const auto z = (y * x[0]).sin();
        EXPECT_THROW(y.add_(torch::ones({7})), c10::Error);
        return (z + y * x[0]).exp().sum();
      },
      {leaf({4})});
}

TEST(Record, InPlaceOpsAreReplayedInPlace) {
  const auto scale = leaf({512});
  const auto wide = leaf({512, 512}, 8).detach();  // 1 MiB
  Tensor loss;
  MemoryMeter meter;
  {
    Recompute scope(drop_all());
    auto y = wide * 2;
    y.mul_(3).add_(1).sin_();
    loss = (y.sum(1) * scale).sum();
  }
  meter.reset_peak();
  loss.backward();
  EXPECT_LT(meter.peak(), (1 << 20) + 65536);
  EXPECT_TRUE(same_bits(scale.grad(), (wide * 2 * 3 + 1).sin().sum(1)));
}

TEST(Record, ADeleterOfWhatTheTapeHeldMayTakeItsLock) {
  const auto x = leaf({2, 2});
  float numbers[4] = {1, 2, 3, 4};
  Tensor other, loss;
  {
    Recompute scope(drop_all());
    other = x.sin().exp().sin().sum();  // of the same tape
    auto given = torch::from_blob(numbers, {2, 2}, [&](void*) { other = Tensor(); });
    loss = (x + given).sin().sum();
  }
  EXPECT_TRUE(other.defined());
  loss = Tensor();
  EXPECT_FALSE(other.defined());
}

TEST(Record, LongChainsAreTakenDownWithoutRecursion) {
  auto x = leaf({1});
  Recompute scope(drop_all());
  auto y = x * 1;
  for (int i = 0; i < 200000; ++i) {
    y = y + 1;  // saves nothing: one long chain of recipes
  }
  y.sin().sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

}  // namespace
}  // namespace retape::testing
