// Which values are kept and which are dropped.
#include "support.h"

namespace retape::testing {
namespace {

constexpr int64_t kMiB = 1 << 20;

// 1 MiB of float.
Tensor mib(uint64_t seed = 7) {
  return leaf({512, 512}, seed);
}

TEST(Policy, NoneKeepsWhatAutogradWouldKeep) {
  const auto x = mib();
  MemoryMeter meter;
  Recompute scope(Policy::none());
  auto y = x.sin().sin().sin().sum();
  scope.close();
  EXPECT_EQ(meter.current(), 2 * kMiB + 4);
  EXPECT_EQ(scope.stats().values_kept, 3u);
  EXPECT_EQ(scope.stats().values_dropped, 0u);
}

TEST(Policy, FullWithoutAnchorsHoldsNothingOfItsOwn) {
  const auto x = mib();
  MemoryMeter meter;
  Recompute scope(drop_all());
  auto y = x.sin().sin().sin().sum();
  scope.close();
  EXPECT_EQ(meter.current(), 4);
  EXPECT_EQ(scope.stats().values_dropped, 2u);
  EXPECT_EQ(scope.stats().bytes_dropped, static_cast<uint64_t>(2 * kMiB));
}

TEST(Policy, FullKeepsAnchorsAboutTheSquareRoot) {
  const auto x = mib();
  for (int step = 0; step < 2; ++step) {
    x.mutable_grad() = Tensor();
    MemoryMeter meter;
    Tensor y = x;
    Recompute scope(Policy::full());
    for (int i = 0; i < 64; ++i) {
      y = y.sin();
    }
    auto loss = y.sum();
    y = Tensor();
    scope.close();
    loss.backward();
    EXPECT_LE(meter.peak(), 17 * kMiB + 64);
    EXPECT_LE(scope.stats().ops_replayed, 64u);
    EXPECT_GT(scope.stats().anchors, 3u);
  }
}

TEST(Policy, AnchorsAreSetWhereForwardIsNarrow) {
  // Blocks that widen eightfold inside: an anchor inside a block would cost 8 MiB.
  const auto x = mib();
  const auto w = leaf({512, 8}, 8);
  Tensor y = x;
  Recompute scope(Policy::full());
  for (int i = 0; i < 24; ++i) {
    auto wide = torch::cat({y, y, y, y, y, y, y, y}).sin();
    wide = (wide * 0.5).exp();
    y = wide.view({8, 512, 512}).sum(0) + y;
  }
  const auto loss = y.sum();
  scope.close();
  ASSERT_GT(scope.stats().anchors, 0u);
  EXPECT_EQ(scope.stats().bytes_anchored, scope.stats().anchors * kMiB);
}

TEST(Policy, CheapReplaysNoMatrixProduct) {
  const auto x = leaf({64, 64});
  const auto w1 = leaf({64, 256}, 8);
  const auto w3 = leaf({64, 256}, 9);
  const auto w2 = leaf({256, 64}, 10);
  MemoryMeter meter;
  Recompute scope(Policy::cheap());
  auto y = (torch::silu(x.mm(w1)) * x.mm(w3)).mm(w2);
  scope.close();
  // Held: gate and up (silu, product and x are replayed or given), and the result.
  EXPECT_EQ(meter.current(), 2 * 64 * 256 * 4 + 64 * 64 * 4);
  y.sum().backward();
  EXPECT_EQ(scope.stats().ops_replayed, 2u);  // silu, mul
}

TEST(Policy, CheapDropsAllOfANormAcrossItsNarrowPlace) {
  // The mean of squares is narrow: a window ends there. What the next one makes from it is replayed
  // all the same once nobody uses it any more.
  const auto x = leaf({64, 1024});
  const auto w = leaf({1024}, 8);
  const auto v = leaf({1024, 1024}, 9);
  MemoryMeter meter;
  Recompute scope(Policy::cheap());
  auto y = at::rms_norm(x, {1024}, w).mm(v);
  scope.close();
  EXPECT_LT(meter.current(), y.nbytes() + 4096);
}

TEST(Policy, CheapKeepsAnUnsavedValueWhereThatIsFewerBytes) {
  // Saved are four wide products of one narrow value that autograd itself never saves.
  const auto x = leaf({64, 64});
  MemoryMeter meter;
  Recompute scope(Policy::cheap());
  const auto narrow = x.mm(x.detach()).sum(1, true) + 1;  // a column
  Tensor total = torch::zeros({});
  for (int i = 1; i <= 4; ++i) {
    total = total + (narrow.expand({64, 256}) * static_cast<double>(i)).sin().sum();
  }
  scope.close();
  EXPECT_LT(meter.current(), 64 * 256 * 4);
  EXPECT_EQ(scope.stats().values_dropped, 4u);
}

TEST(Policy, KeepOpsCutsReplayThere) {
  const auto x = leaf({64, 64});
  const auto w = leaf({64, 64}, 8);
  const auto replayed = [&](const Policy& policy) {
    x.mutable_grad() = Tensor();
    Recompute scope(policy);
    const auto loss = x.mm(w).sin().mm(w).sin().sum();
    scope.close();
    loss.backward();
    return scope.stats().ops_replayed;
  };
  EXPECT_EQ(replayed(drop_all()), 3u);                         // mm, sin, mm
  EXPECT_EQ(replayed(drop_all().keep_ops({"aten::mm"})), 1u);  // sin
  EXPECT_EQ(replayed(Policy::none().drop_ops({"aten::sin"})), 1u);
}

TEST(Policy, OwnFunctionIsToldWhatItDecidesOn) {
  const auto x = leaf({8, 16});
  std::vector<std::string> seen;
  Recompute scope(
      Policy::function([&](const ValueInfo& info) {
        seen.push_back(info.op + " " + info.region + " " + std::to_string(info.bytes));
        EXPECT_EQ(info.dtype, c10::kFloat);
        return info.cheap ? Decision::Drop : Decision::Keep;
      }),
      "block");
  const auto loss = x.mm(x.t()).sin().sum();
  scope.close();
  EXPECT_EQ(
      seen,
      (std::vector<std::string>{"aten::mm block 256", "aten::sin block 256", "aten::sum block 4"}));
  EXPECT_EQ(scope.stats().values_dropped, 0u);  // sin saves mm's result, which is kept
}

TEST(Policy, OwnFunctionDecidesOnVersionsToo) {
  const auto x = leaf({8, 16}).detach();
  std::vector<std::string> seen;
  Recompute scope(Policy::function([&](const ValueInfo& info) {
    seen.push_back(
        info.op + " " + std::to_string(c10::multiply_integers(info.sizes)) + " " +
        std::to_string(info.bytes));
    return Decision::Drop;
  }));
  auto y = x * 2;
  y.slice(1, 0, 4).mul_(3);
  EXPECT_EQ(seen, (std::vector<std::string>{"aten::mul 128 512", "aten::mul_ 32 512"}));
}

TEST(Policy, EveryResultOfAnOpIsAskedFor) {
  const auto x = leaf({8, 16}).detach();
  std::vector<size_t> outputs;
  Recompute scope(Policy::function([&](const ValueInfo& info) {
    outputs.push_back(info.output);
    return Decision::Keep;
  }));
  torch::native_layer_norm(x, {16}, {}, {}, 1e-5);
  EXPECT_EQ(outputs, (std::vector<size_t>{0, 1, 2}));
}

TEST(Policy, SelectiveIsAskedOncePerOpWithItsArgumentsAndOutputs) {
  const auto x = leaf({8, 16});
  std::vector<std::string> seen;
  Recompute scope(
      Policy::selective([&](const OpCall& call) {
        seen.push_back(call.op.schema().name() + " " + std::to_string(call.outputs.size()));
        EXPECT_EQ(call.region, "block");
        EXPECT_EQ(call.args.size(), call.op.schema().arguments().size());
        EXPECT_TRUE(call.args[0].toTensor().requires_grad());
        EXPECT_FALSE(call.outputs[0].toTensor().requires_grad());
        return Decision::Keep;
      }),
      "block");
  auto normed = std::get<0>(torch::native_layer_norm(x, {16}, {}, {}, 1e-5));
  normed.t().exp();
  EXPECT_EQ(
      seen, (std::vector<std::string>{"aten::native_layer_norm 3", "aten::t 1", "aten::exp 1"}));
}

TEST(Policy, SelectiveDecidesByArguments) {
  const auto x = leaf({8, 8});
  const auto trained = leaf({8, 8}, 8);
  const auto frozen = leaf({8, 8}, 9).detach();
  const auto loss_of = [&] { return x.mm(frozen).sin().mm(trained).sin().sum(); };
  const auto expected = torch::autograd::grad({loss_of()}, {x, trained});
  Recompute scope(Policy::selective([&](const OpCall& call) {
    const bool product = call.op.schema().name() == "aten::mm";
    return product && call.args[1].toTensor().requires_grad() ? Decision::Keep : Decision::Drop;
  }));
  const auto loss = loss_of();
  scope.close();
  const auto found = torch::autograd::grad({loss}, {x, trained});
  EXPECT_EQ(scope.stats().ops_replayed, 2u);  // x.mm(frozen), and its sin
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(same_bits(found[i], expected[i]));
  }
}

TEST(Policy, SelectiveThatThrowsLeavesNothingOpen) {
  const auto x = leaf({8, 8});
  {
    Recompute scope(
        Policy::selective([](const OpCall&) -> Decision { throw std::invalid_argument("mine"); }));
    EXPECT_THROW(x.sin(), std::invalid_argument);
    EXPECT_THROW(x.t(), std::invalid_argument);
  }
  EXPECT_FALSE(is_recording());
  EXPECT_THROW(Policy::selective(nullptr), UsageError);
  EXPECT_EQ(
      Policy::selective([](const OpCall&) { return Decision::Keep; }).describe(), "selective");
}

TEST(Policy, DefaultNamesTheOverloadWithoutAName) {
  const auto x = leaf({8, 8});
  const auto replayed = [&](const Policy& policy) {
    Recompute scope(policy);
    const auto loss = x.mm(x).sin().sum();
    scope.close();
    loss.backward();
    return scope.stats().ops_replayed;
  };
  EXPECT_EQ(replayed(drop_all()), 1u);
  EXPECT_EQ(replayed(drop_all().keep_ops({"aten::mm.default"})), 0u);
  EXPECT_EQ(replayed(drop_all().keep_ops({"aten::mm.out"})), 1u);
  EXPECT_THROW(drop_all().keep_ops({"aten::mm.defaults"}), UsageError);
}

TEST(Policy, NestedScopesCompose) {
  const auto x = leaf({32, 32});
  const auto w = leaf({32, 32}, 8);
  const auto step = [&](const Policy* outer, const Policy* inner) {
    x.mutable_grad() = w.mutable_grad() = Tensor();
    std::optional<Recompute> outside;
    if (outer) {
      outside.emplace(*outer, "outer");
    }
    auto y = torch::gelu(x.mm(w));
    {
      std::optional<Recompute> inside;
      if (inner) {
        inside.emplace(*inner, "inner");
      }
      y = torch::softmax(y.mm(w) * 2, -1).exp();
    }
    const auto loss = y.mm(w).sin().sum();
    outside.reset();
    loss.backward();
    return std::make_pair(x.grad(), w.grad());
  };
  const auto plain = step(nullptr, nullptr);
  const std::vector<Policy> all{Policy::none(), drop_all(), Policy::full(), Policy::cheap()};
  for (const auto& outer : all) {
    for (const auto& inner : all) {
      const auto grads = step(&outer, &inner);
      EXPECT_TRUE(same_bits(plain.first, grads.first))
          << outer.describe() << " / " << inner.describe();
      EXPECT_TRUE(same_bits(plain.second, grads.second))
          << outer.describe() << " / " << inner.describe();
    }
  }
}

TEST(Policy, WhatARegionLeavesToTheScopeAroundItIsKeptThere) {
  const auto x = mib();
  const auto replayed = [&](const Policy& around) {
    x.mutable_grad() = Tensor();
    MemoryMeter meter;
    Recompute outside(around);
    Tensor y;
    Recompute inside(drop_all());
    y = x.sin().cos().exp();
    inside.close();
    auto loss = y.sin().sum();
    y = Tensor();
    outside.close();
    const auto held = meter.current();
    const auto dropped = inside.stats().bytes_dropped;
    loss.backward();
    return std::make_tuple(inside.stats().ops_replayed, held / kMiB, dropped / kMiB);
  };
  using Result = std::tuple<uint64_t, int64_t, uint64_t>;
  EXPECT_EQ(replayed(Policy::none()), Result(1, 1, 1));
  EXPECT_EQ(replayed(Policy::full()), Result(1, 1, 1));
  EXPECT_EQ(replayed(Policy::cheap()), Result(1, 1, 1));
  EXPECT_EQ(replayed(drop_all()), Result(3, 0, 2));
  EXPECT_EQ(
      replayed(Policy::function([](const ValueInfo&) { return Decision::Drop; })), Result(3, 0, 2));
}

TEST(Policy, WhatARegionLeavesAndOnlyItsRecipesReadIsKeptToo) {
  const auto gradient = [](bool recompute) {
    const auto x = leaf({8, 8});
    std::optional<Recompute> outside, inside;
    if (recompute) {
      outside.emplace(Policy::full());
      inside.emplace(drop_all());
    }
    auto h = x + 1;  // autograd saves neither it nor anything for it
    const auto loss = (h * 2).sin().sum();
    inside.reset();
    h = Tensor();
    outside.reset();
    loss.backward();
    return x.grad();
  };
  EXPECT_TRUE(same_bits(gradient(false), gradient(true)));
}

TEST(Policy, WhatAWindowDropsCanBeReplayedByWhoReadsItLater) {
  const auto x = mib();
  MemoryMeter meter;
  Recompute outside(drop_all());
  Tensor h;
  {
    Recompute inside(Policy::cheap());
    h = x * 2;
  }
  auto loss = h.sin().sum();
  h = Tensor();
  outside.close();
  EXPECT_LT(meter.current(), kMiB);
  loss.backward();
  EXPECT_TRUE(same_bits(x.grad(), (x.detach() * 2).cos() * 2));
}

TEST(Policy, WhatAutogradSavesAnywayCostsAWindowNothing) {
  const auto given = mib().exp();
  Recompute scope(Policy::cheap());
  const auto y = (given * 2).sin().sum() + given.cos().sum();
  scope.close();
  EXPECT_EQ(scope.stats().values_dropped, 1u);  // the product: it can be made from what cos saved
}

TEST(Policy, AWindowIsDecidedOnBeforeAnOpThatIsKept) {
  const auto x = mib();
  MemoryMeter meter;
  Recompute scope(Policy::cheap().keep_ops({"aten::cos"}));
  auto y = x;
  for (int i = 0; i < 3; ++i) {
    y = y.sin();
  }
  y = y.sum();  // narrow
  y = y.cos();
  EXPECT_LT(meter.current(), kMiB);
}

TEST(Policy, AResultThatWasKeptAndIsGoneIsNotWrittenByReplayOfTheOthers) {
  const auto x = leaf({8, 64});
  const auto w = leaf({8, 1}, 8);
  Tensor normed_loss, mean_loss;
  {
    Recompute outside(Policy::full());
    Recompute inside(drop_all());
    auto [normed, mean, rstd] = torch::native_layer_norm(x.detach() * 2, {64}, {}, {}, 1e-5);
    normed_loss = (normed * x).sum();
    mean_loss = (mean * w).sum();
    normed = rstd = Tensor();  // mean is left to the scope around it
    inside.close();
  }
  mean_loss = Tensor();
  std::vector<Tensor> others;  // take its place in memory
  Recompute scope(drop_all());
  for (int i = 1; i < 9; ++i) {
    others.push_back(torch::ones({100 + i}) * 2);
  }
  normed_loss.backward();
  EXPECT_TRUE(same_bits(
      x.grad(), std::get<0>(torch::native_layer_norm(x.detach() * 2, {64}, {}, {}, 1e-5))));
}

TEST(Policy, WhatIsCountedAsKeptIsWhatIsHeld) {
  const auto x = mib();
  for (const auto& policy : {Policy::none(), Policy::full(), Policy::cheap(), drop_all()}) {
    SCOPED_TRACE(policy.describe());
    MemoryMeter meter;
    Recompute scope(policy);
    Tensor y = x;
    for (int i = 0; i < 64; ++i) {
      y = y.sin();
    }
    const auto loss = y.sum();
    y = Tensor();
    scope.close();
    const auto stats = scope.stats();
    EXPECT_EQ(stats.values_saved, 64u);
    EXPECT_EQ(static_cast<int64_t>(stats.bytes_kept - stats.bytes_given), meter.current() - 4);
  }
}

}  // namespace
}  // namespace retape::testing
