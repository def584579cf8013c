// Which bytes a value is: what is given, what changes in a scope, beside it and after it.
#include "support.h"

#include <torch/library.h>

#include <thread>

namespace retape::testing {
namespace {

// Runs it where no scope is open: nobody records it.
void elsewhere(const std::function<void()>& call) {
  std::thread(call).join();
}

// A column: the tape takes copies of small vectors, which are not what these tests are about.
Tensor column(float value) {
  return torch::full({4, 1}, value);
}

// Writes, and then fails.
void spoil(Tensor& x) {
  std::fill_n(x.data_ptr<float>(), x.numel(), 0.25f);
  throw std::runtime_error("spoilt");
}

TORCH_LIBRARY(retape_versions_test, m) {
  m.def("spoil(Tensor(a!) x) -> ()");
}

TORCH_LIBRARY_IMPL(retape_versions_test, CPU, m) {
  m.impl("spoil", &spoil);
}

// ---- what was given

TEST(Versions, WhatWasGivenAndIsResizedInTheScopeIsReplayedFromAsItWas) {
  expect_same(
      [](const auto& x) {
        const auto y = (x[0] + x[1]).sin();
        x[1].resize_({100, 1});
        return y.sum();
      },
      {leaf({4, 8}), column(0.5)});  // what is made of it is larger, so it is copied
}

TEST(Versions, WhatWasGivenKeepsTheVersionThatItCameWith) {
  auto given = column(0.5);
  given.add_(1);
  expect_same(
      [&](const auto& x) {
        Tensor h;
        {
          at::AutoDispatchBelowAutograd below;  // where tensors have not got their counters yet
          h = given * 2;
        }
        return (h * x[0]).sum();
      },
      {leaf({4, 1})});
}

TEST(Versions, WhatWasReadBeforeItWasWrittenIsTakenAsGiven) {
  const auto x = column(0.5);
  std::vector<std::string> asked;
  Recompute scope(Policy::function([&](const ValueInfo& info) {
    asked.push_back(info.op);
    return Decision::Drop;
  }));
  auto read = torch::empty({4, 1});
  read.sin();
  read.copy_(x);
  auto written = torch::empty({4, 1});
  written.copy_(x);
  EXPECT_EQ(asked, (std::vector<std::string>{"aten::sin", "aten::copy_"}));
}

TEST(Versions, AViewReadsNothing) {
  const auto x = column(0.5);
  std::vector<std::string> asked;
  Recompute scope(Policy::function([&](const ValueInfo& info) {
    asked.push_back(info.op);
    return Decision::Drop;
  }));
  auto made = torch::empty({4, 1});
  made.view({2, 2}).t().copy_(x.view({2, 2}));
  EXPECT_EQ(asked, std::vector<std::string>{"aten::copy_"});
}

// ---- writes that no scope sees

TEST(Versions, AWriteOnAThreadWithoutAScopeIsNoticed) {
  for (const bool below_autograd : {false, true}) {
    SCOPED_TRACE(below_autograd ? "made below autograd" : "made as usual");
    expect_same(
        [&](const auto& x) {
          Tensor h;
          {
            std::optional<at::AutoDispatchBelowAutograd> below;
            if (below_autograd) {
              below.emplace();
            }
            h = x[1] * 2;
          }
          elsewhere([&] { h.mul_(3); });
          return (h * x[0]).sum();
        },
        {leaf({4, 1}), column(0.5)},
        /*replays=*/false);
  }
}

TEST(Versions, WhatWasReadBeforeAWriteOnAnotherThreadIsReplayedFromItsRecipe) {
  expect_same(
      [](const auto& x) {
        auto h = x[1] * 2;
        const auto before =
            (x[0] + h).sin();  // saves the sum: a recipe that reads the first version
        elsewhere([&] { h.mul_(3); });
        return (before + h * x[0]).sum();
      },
      {leaf({4, 1}), column(0.5)});
}

TEST(Versions, AStatisticThatAKeptBatchNormMovesIsSeenAsAutogradSeesIt) {
  // The write leaves no trace in the version counter: plain autograd hands out the moved bytes.
  const auto step = [](const auto& x) {
    auto mean = x[1] * 2;
    const auto y = x[0] * mean;
    const auto z = torch::batch_norm(y, {}, {}, mean, torch::ones({4}), true, 0.5, 1e-5, false);
    return y.sum() + z.sum();
  };
  const std::vector<Tensor> leaves{leaf({8, 4}), leaf({4}, 8).detach()};
  const auto plain = run(step, leaves, nullptr);
  const auto policy = drop_all().keep_ops({"aten::native_batch_norm"});
  const auto other = run(step, leaves, &policy);
  EXPECT_TRUE(same_bits(plain.grads[0], other.grads[0]));
}

// ---- in place

TEST(Versions, AnInPlaceViewMakesNoVersion) {
  const auto x = leaf({4, 2});
  const auto turned = [](const auto& leaves) {
    auto y = leaves[0] * 2;
    y.t_().unsqueeze_(0);
    return y.sin().sum();
  };
  std::vector<std::string> asked;
  {
    Recompute scope(Policy::function([&](const ValueInfo& info) {
      asked.push_back(info.op);
      return Decision::Drop;
    }));
    turned(std::vector<Tensor>{x});
  }
  EXPECT_EQ(asked, (std::vector<std::string>{"aten::mul", "aten::sin", "aten::sum"}));
  expect_same(turned, {x}, /*replays=*/false);
}

TEST(Versions, WhatAnOpWroteBeforeItFailedIsWritten) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("retape_versions_test::spoil", "")
                             .typed<void(Tensor&)>();
  expect_same(
      [](const auto& x) {
        auto y = x[1] * 2;
        EXPECT_THROW(op.call(y), std::runtime_error);
        return (y * x[0]).sum();
      },
      {leaf({4, 1}), column(0.5)},
      /*replays=*/false);
}

TEST(Versions, WhatAnInPlaceOpSavesOfItsOwnResultIsDropped) {
  const auto x = leaf({4});
  Recompute scope(drop_all());
  auto y = x * 2;
  y.exp_();
  EXPECT_EQ(scope.stats().values_dropped, 1u);
  scope.close();
  y.sum().backward();
  EXPECT_TRUE(same_bits(x.grad(), (x.detach() * 2).exp() * 2));
}

TEST(Versions, AnOpThatReadsWhatItHasJustWrittenDoesSoAgain) {
  // A matrix product into its own factor is not the product, but whatever it is, it is that again.
  expect_same(
      [](const auto& x) {
        auto y = x[1] * 2;
        torch::mm_out(y, y, x[2]);
        return (y * x[0]).sin().exp().sum();
      },
      {leaf({8, 8}), leaf({8, 8}, 8).detach(), leaf({8, 8}, 9).detach()});
}

TEST(Versions, WhatWasDroppedAndIsOverwrittenCountsOnce) {
  const auto x = leaf({4});
  Recompute scope(drop_all());
  auto h = x.detach() * 2;
  const auto y = h * x;
  h.mul_(3);
  EXPECT_EQ(scope.stats().values_dropped, 1u);
  EXPECT_EQ(scope.stats().bytes_dropped, 16u);
}

TEST(Versions, AnOpThatReadsWhatItWritesLeavesNothingBehind) {
  const auto x = leaf({512, 512});
  MemoryMeter meter;
  Tensor loss;
  {
    Recompute scope(drop_all());
    auto y = x.detach() * 2;
    y.mul_(y);
    loss = (y * x).sum();
  }
  const auto held = meter.current();
  loss.backward({}, /*retain_graph=*/true);
  x.mutable_grad() = Tensor();
  EXPECT_EQ(meter.current(), held);
}

TEST(Versions, WhatAWindowKeptIsCopiedBeforeItIsOverwritten) {
  const auto gradient = [](bool recompute) {
    const auto x = leaf({8, 8});
    std::optional<Recompute> outer, inner;
    if (recompute) {
      outer.emplace(drop_all());
      inner.emplace(Policy::cheap());
    }
    auto narrow = x.mm(x.detach()).sum(1, true);  // kept for good when the inner scope closes
    auto total = torch::zeros({});
    for (int i = 1; i <= 4; ++i) {
      total = total + (narrow.expand({8, 32}) * i).sin().sum();  // made from it again in backward
    }
    if (recompute) {
      inner->close();
      EXPECT_EQ(inner->stats().values_dropped, 4u);
    }
    narrow.mul_(3);
    const auto loss = total + narrow.sum();
    outer.reset();
    loss.backward();
    return x.grad();
  };
  EXPECT_TRUE(same_bits(gradient(false), gradient(true)));
}

}  // namespace
}  // namespace retape::testing
