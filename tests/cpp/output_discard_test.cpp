// OutputDiscardCheckpoint gives what plain autograd gives. Each scenario runs plain (the function
// is called, discard does nothing) and for real; results are compared bitwise, and the bytes that
// discard freed show that there was something to compare.
#include "support.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <thread>

namespace retape::testing {
namespace {

constexpr int64_t kWidth = 8, kHidden = 32;
constexpr size_t kH = 2 * 3 * kHidden * 4;  // bytes of the output

struct Checkpoint {
  bool real;
  size_t* freed;
  OutputDiscardCheckpoint ckpt = OutputDiscardCheckpoint("ffn");

  template <typename Function, typename... Args>
  auto checkpoint(Function&& function, Args&&... args) {
    return real ? ckpt.checkpoint(function, args...) : function(args...);
  }
  void discard(const Tensor& hook_tensor) {
    *freed += real ? ckpt.discard_output_and_register_recompute(hook_tensor) : 0;
  }
};

struct Block {
  bool real;
  size_t freed = 0;
  Tensor x = leaf({2, 3, kWidth}, 1);
  Tensor up = leaf({kHidden, kWidth}, 2), bias = leaf({kHidden}, 3);
  Tensor down = leaf({kWidth, kHidden}, 4);

  Checkpoint make() { return {real, &freed}; }
  Tensor inner(const Tensor& t) const { return torch::silu(torch::linear(t, up, bias)); }
  Tensor consumer(const Tensor& h) const { return torch::linear(h, down); }

  template <typename Function>
  Tensor forward(Function&& function, const Tensor& in) {
    auto ckpt = make();
    const auto h = ckpt.checkpoint(function, in);
    const auto z = consumer(h);
    ckpt.discard(z);
    return z;
  }
  Tensor forward(const Tensor& in) {
    return forward([&](const Tensor& t) { return inner(t); }, in);
  }
  std::vector<Tensor> grads() const { return {x.grad(), up.grad(), bias.grad(), down.grad()}; }
};

Tensor loss(const Tensor& z) {
  return z.square().sum();
}

using Scenario = std::function<std::vector<Tensor>(Block&)>;

void expect_same_as_plain(const Scenario& scenario, size_t freed) {
  torch::manual_seed(5);
  Block plain_block{false};
  const auto plain = scenario(plain_block);
  torch::manual_seed(5);
  Block block{true};
  const auto found = scenario(block);
  ASSERT_EQ(plain.size(), found.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(same_bits(plain[i], found[i])) << "result " << i;
    EXPECT_TRUE(!plain[i].defined() || plain[i].abs().max().item<double>() > 0) << "result " << i;
  }
  EXPECT_EQ(block.freed, freed);
}

std::string text_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// ---- what the function does

TEST(OutputDiscard, LinearThatSavedATwoDimensionalView) {
  expect_same_as_plain(
      [](Block& b) {
        const auto z = b.forward(b.x);
        loss(z).backward();
        return std::vector<Tensor>{z, b.x.grad(), b.up.grad(), b.bias.grad(), b.down.grad()};
      },
      kH);
}

TEST(OutputDiscard, DropoutDrawsTheSameNumbersAndNoMore) {
  expect_same_as_plain(
      [](Block& b) {
        loss(b.forward([&](const Tensor& t) { return torch::dropout(b.inner(t), 0.5, true); }, b.x))
            .backward();
        auto results = b.grads();
        results.push_back(torch::rand({4}));
        return results;
      },
      kH);
}

TEST(OutputDiscard, AutocastOfForwardHoldsInReplay) {
  expect_same_as_plain(
      [](Block& b) {
        at::autocast::set_autocast_enabled(at::kCPU, true);
        const auto z = b.forward(b.x);
        at::autocast::set_autocast_enabled(at::kCPU, false);
        at::autocast::clear_cache();
        loss(z.to(torch::kFloat)).backward();
        return b.grads();
      },
      kH / 2);
}

TEST(OutputDiscard, InputWithoutGradient) {
  expect_same_as_plain(
      [](Block& b) {
        loss(b.forward(b.x.detach())).backward();
        return b.grads();
      },
      kH);
}

TEST(OutputDiscard, FrozenRegion) {
  expect_same_as_plain(
      [](Block& b) {
        b.up.set_requires_grad(false);
        b.bias.set_requires_grad(false);
        loss(b.forward(b.x.detach())).backward();
        return b.grads();
      },
      kH);
}

TEST(OutputDiscard, IsAPlainCallWithoutGradients) {
  expect_same_as_plain(
      [](Block& b) {
        torch::NoGradGuard guard;
        return std::vector<Tensor>{b.forward(b.x)};
      },
      0);
}

TEST(OutputDiscard, CapturedTensorThatIsAlsoUsedOutside) {
  expect_same_as_plain(
      [](Block& b) {
        const auto shared = b.x * 2;
        const auto z = b.forward(
            [&](const Tensor& t) { return b.inner(t) + b.inner(shared); }, b.x);
        (loss(z) + shared.sin().sum()).backward();
        return b.grads();
      },
      kH);
}

TEST(OutputDiscard, OutputThatIsAnArgumentStays) {
  expect_same_as_plain(
      [](Block& b) {
        loss(b.forward([](const Tensor& t) { return t.to(torch::kFloat); }, b.inner(b.x)))
            .backward();
        return b.grads();
      },
      0);
}

TEST(OutputDiscard, OutputThatIsAViewOfAnArgumentStays) {
  expect_same_as_plain(
      [](Block& b) {
        const auto h = b.inner(b.x);
        const auto z = b.forward([](const Tensor& t) { return t.view({-1, kHidden}); }, h);
        (loss(z) + h.sin().sum()).backward();
        return b.grads();
      },
      0);
}

TEST(OutputDiscard, OutputThatIsASliceOfAWiderTensor) {
  expect_same_as_plain(
      [](Block& b) {
        const auto wide = leaf({2 * kHidden, kWidth}, 9);
        const auto half = [&](const Tensor& t) {
          return torch::silu(torch::linear(t, wide)).slice(-1, kHidden);
        };
        loss(b.forward(half, b.x)).backward();
        return std::vector<Tensor>{b.x.grad(), wide.grad(), b.down.grad()};
      },
      2 * kH);
}

TEST(OutputDiscard, TwoOutputsOnOneStorage) {
  expect_same_as_plain(
      [](Block& b) {
        const auto wide = leaf({2 * kHidden, kWidth}, 9);
        auto ckpt = b.make();
        Tensor z;
        {
          const auto parts = ckpt.checkpoint(
              [&](const Tensor& t) { return torch::silu(torch::linear(t, wide)).chunk(2, -1); },
              b.x);
          z = b.consumer(parts[0]) * b.consumer(parts[1]);
        }
        ckpt.discard(z);
        loss(z).backward();
        return std::vector<Tensor>{b.x.grad(), wide.grad(), b.down.grad()};
      },
      2 * kH);
}

TEST(OutputDiscard, SeveralOutputsAndIntegersAndNothingAmongThem) {
  expect_same_as_plain(
      [](Block& b) {
        auto ckpt = b.make();
        const auto route = [&](const Tensor& t) {
          const auto h = b.inner(t);
          return std::make_tuple(
              h, h.detach().argmax(-1), std::optional<Tensor>(), std::make_pair(h.tanh(), 3));
        };
        const auto [h, chosen, none, pair] = ckpt.checkpoint(route, b.x);
        const auto z = b.consumer(h) + b.consumer(pair.first) * pair.second;
        ckpt.discard(z);
        loss(z * chosen.unsqueeze(-1)).backward();
        return b.grads();
      },
      2 * kH);
}

TEST(OutputDiscard, StructOfTensors) {
  struct Gated {
    Tensor value;
    std::vector<Tensor> gates;
    std::optional<Tensor> none;
    int64_t scale;
  };
  expect_same_as_plain(
      [](Block& b) {
        auto ckpt = b.make();
        const auto gated = [&](const Tensor& t) {
          const auto h = b.inner(t);
          return Gated{h, {h.tanh(), h.sigmoid()}, std::nullopt, 3};
        };
        const auto out = ckpt.checkpoint(gated, b.x);
        const auto z = b.consumer(out.value * out.gates[0]) + b.consumer(out.gates[1]) * out.scale;
        ckpt.discard(z);
        loss(z).backward();
        return b.grads();
      },
      3 * kH);
}

TEST(OutputDiscard, StructOfTensorsAsAnArgumentStays) {
  struct Pair {
    Tensor first, second;
  };
  expect_same_as_plain(
      [](Block& b) {
        auto ckpt = b.make();
        const auto swapped = [&](const Pair& in) { return Pair{in.second, b.inner(in.first)}; };
        const auto out = ckpt.checkpoint(swapped, Pair{b.x, b.x * 2});
        const auto z = b.consumer(out.second) + out.first;
        ckpt.discard(z);
        loss(z).backward();
        return b.grads();
      },
      kH);
}

TEST(OutputDiscard, FunctionWhoseLayoutDependsOnGradMode) {
  expect_same_as_plain(
      [](Block& b) {
        const auto inner = [&](const Tensor& t) {
          const auto h = b.inner(t);
          return at::GradMode::is_enabled() ? h : h.transpose(0, 1).contiguous().transpose(0, 1);
        };
        loss(b.forward(inner, b.x)).backward();
        return b.grads();
      },
      kH);
}

TEST(OutputDiscard, FunctionThatIsNotTheSameTwiceRunsOnce) {
  int calls = 0;
  expect_same_as_plain(
      [&](Block& b) {
        calls = 0;
        const auto inner = [&](const Tensor& t) {
          return ++calls == 1 ? b.inner(t) : b.inner(t).to(torch::kDouble);
        };
        loss(b.forward(inner, b.x)).backward();
        return b.grads();
      },
      kH);
  EXPECT_EQ(calls, 1);
}

TEST(OutputDiscard, FunctionThatChangesItsArgument) {
  expect_same_as_plain(
      [](Block& b) {
        auto in = b.x * 2;
        loss(b.forward([&](Tensor t) { return b.inner(t.mul_(3)); }, in)).backward();
        return b.grads();
      },
      kH);
}

// ---- what the consumer does

TEST(OutputDiscard, ReductionAndLinearThatReadItAfterDiscard) {
  expect_same_as_plain(
      [](Block& b) {
        auto ckpt = b.make();
        const auto h = ckpt.checkpoint([&](const Tensor& t) { return b.inner(t); }, b.x);
        const auto z = b.consumer(h);
        ckpt.discard(z);
        const auto total = h.sum();
        (loss(z + b.consumer(h).sin()) + total.square()).backward();
        return std::vector<Tensor>{total, b.x.grad(), b.up.grad(), b.down.grad()};
      },
      kH);
}

TEST(OutputDiscard, CompositeOpThatReadsItAfterDiscard) {
  expect_same_as_plain(
      [](Block& b) {
        auto ckpt = b.make();
        const auto h = ckpt.checkpoint([&](const Tensor& t) { return b.inner(t); }, b.x);
        const auto z = b.consumer(h);
        ckpt.discard(z);
        const auto again = b.consumer(h);
        loss(z + again.sin()).backward();
        return std::vector<Tensor>{again, b.x.grad(), b.up.grad(), b.down.grad()};
      },
      kH);
}

TEST(OutputDiscard, ReplayOfAScopeThatItWasGivenTo) {
  expect_same_as_plain(
      [](Block& b) {
        auto ckpt = b.make();
        Tensor z, branch;
        {
          const auto h = ckpt.checkpoint([&](const Tensor& t) { return b.inner(t); }, b.x);
          Recompute scope(drop_all());
          branch = (h * 2).sin().sum();  // replayed from h
          scope.close();
          z = b.consumer(h);
        }
        ckpt.discard(z);
        branch.backward({}, /*retain_graph=*/true);
        loss(z).backward();
        return b.grads();
      },
      kH);
}

TEST(OutputDiscard, WriteInBackwardAfterItIsBackIsNotWhatRecipesRead) {
  expect_same_as_plain(
      [](Block& b) {
        Recompute scope(drop_all());
        auto ckpt = b.make();
        auto h = ckpt.checkpoint([&](const Tensor& t) { return b.inner(t); }, b.x);
        const auto branch = (h * 2).sin().sum();  // replayed from h, which autograd did not save
        const auto z = h + 1;
        ckpt.discard(z);
        scope.close();
        branch.register_hook([&](const Tensor&) {  // z has its gradient by then, and h is back
          torch::NoGradGuard guard;
          h.mul_(3);
        });
        (branch + loss(z)).backward();
        return std::vector<Tensor>{h, b.x.grad(), b.up.grad(), b.bias.grad()};
      },
      kH);
}

TEST(OutputDiscard, ViewInPlaceLeavesItDiscarded) {
  Block b{true};
  auto ckpt = b.make();
  MemoryMeter meter;
  auto h = ckpt.checkpoint([&](const Tensor& t) { return b.inner(t); }, b.x);
  const auto z = b.consumer(h);
  ckpt.discard(z);
  EXPECT_EQ(b.freed, kH);
  const auto held = meter.current();
  h.unsqueeze_(0);
  EXPECT_EQ(meter.current(), held);
  EXPECT_EQ(h.sizes(), (std::vector<int64_t>{1, 2, 3, kHidden}));
}

TEST(OutputDiscard, ConsumerOutsideTheHook) {
  expect_same_as_plain(
      [](Block& b) {
        auto ckpt = b.make();
        Tensor z, branch;
        {
          const auto h = ckpt.checkpoint([&](const Tensor& t) { return b.inner(t); }, b.x);
          z = b.consumer(h);
          branch = h.square().sum() + (h.detach() * b.down.sum()).sum();
        }
        ckpt.discard(z);
        branch.backward({}, /*retain_graph=*/true);
        loss(z).backward();
        return b.grads();
      },
      kH);
}

TEST(OutputDiscard, HookTensorWithoutGradient) {
  expect_same_as_plain(
      [](Block& b) {
        auto ckpt = b.make();
        Tensor branch;
        {
          const auto h = ckpt.checkpoint([&](const Tensor& t) { return b.inner(t); }, b.x);
          branch = h.square().sum();
          ckpt.discard(torch::linear(h.detach(), b.down.detach()));
        }
        branch.backward();
        return b.grads();
      },
      kH);
}

TEST(OutputDiscard, OutputChangedInPlaceByItsConsumerStays) {
  expect_same_as_plain(
      [](Block& b) {
        auto ckpt = b.make();
        auto h = ckpt.checkpoint([&](const Tensor& t) { return b.inner(t); }, b.x);
        const auto z = b.consumer(h.mul_(2));
        ckpt.discard(z);
        loss(z).backward();
        return b.grads();
      },
      0);
}

TEST(OutputDiscard, WriteThatTheVersionCounterDoesNotSeeMakesItStay) {
  expect_same_as_plain(
      [](Block& b) {
        auto ckpt = b.make();
        const auto h = ckpt.checkpoint([&](const Tensor& t) { return b.inner(t); }, b.x);
        h.variable_data().mul_(2);
        const auto z = b.consumer(h);
        ckpt.discard(z);
        loss(z).backward();
        return b.grads();
      },
      0);
}

TEST(OutputDiscard, WriteToAnInputThatAutogradDoesNotNeed) {
  for (const bool seen : {true, false}) {
    for (const bool discarded : {true, false}) {
      SCOPED_TRACE(std::to_string(seen) + std::to_string(discarded));
      expect_same_as_plain(
          [=](Block& b) {
            auto ckpt = b.make();
            const auto in = b.x * 2;
            const auto write = [&] { (seen ? in.detach() : in.variable_data()).mul_(3); };
            Tensor z;
            {
              const auto h = ckpt.checkpoint(
                  [](const Tensor& t) { return t.repeat({1, 1, 4}) + 1; }, in);
              z = b.consumer(h);
            }
            if (!discarded) {
              write();
            }
            ckpt.discard(z);
            if (discarded) {
              write();
            }
            loss(z).backward();
            return std::vector<Tensor>{in, b.x.grad(), b.down.grad()};
          },
          discarded ? kH : 0);  // what was discarded comes back before the write
    }
  }
}

TEST(OutputDiscard, HookOnTheOutputFiresOnce) {
  expect_same_as_plain(
      [](Block& b) {
        std::vector<Tensor> seen;
        auto ckpt = b.make();
        const auto h = ckpt.checkpoint([&](const Tensor& t) { return b.inner(t); }, b.x);
        h.register_hook([&](const Tensor& grad) { seen.push_back(grad.clone()); });
        const auto z = b.consumer(h);
        ckpt.discard(z);
        loss(z).backward();
        return seen;
      },
      kH);
}

struct Product : torch::autograd::Function<Product> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& h, const Tensor& w) {
    ctx->save_for_backward({h, w});
    return h.matmul(w.t());
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx, torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {grads[0].matmul(saved[1]), grads[0].flatten(0, -2).t().mm(saved[0].flatten(0, -2))};
  }
};

TEST(OutputDiscard, ConsumerThatIsAFunctionOfTheUser) {
  expect_same_as_plain(
      [](Block& b) {
        auto ckpt = b.make();
        const auto z = Product::apply(
            ckpt.checkpoint([&](const Tensor& t) { return b.inner(t); }, b.x), b.down);
        ckpt.discard(z);
        loss(z).backward();
        return b.grads();
      },
      kH);
}

// ---- the order of things

TEST(OutputDiscard, TwoMicroBatchesBackwardInReverse) {
  expect_same_as_plain(
      [](Block& b) {
        const auto first = b.forward(b.x), second = b.forward(b.x * 2);
        loss(second).backward();
        loss(first).backward();
        return b.grads();
      },
      2 * kH);
}

TEST(OutputDiscard, OneObjectTwoForwards) {
  expect_same_as_plain(
      [](Block& b) {
        auto ckpt = b.make();
        const auto inner = [&](const Tensor& t) { return b.inner(t); };
        const auto first = b.consumer(ckpt.checkpoint(inner, b.x));
        const auto second = b.consumer(ckpt.checkpoint(inner, b.x * 2));
        ckpt.discard(first);
        ckpt.discard(second);
        loss(first).backward();
        loss(second).backward();
        return b.grads();
      },
      2 * kH);
}

void chained(bool reverse) {
  expect_same_as_plain(
      [=](Block& b) {
        auto first = b.make(), second = b.make();
        Tensor z;
        {
          const auto h = first.checkpoint([&](const Tensor& t) { return b.inner(t); }, b.x);
          const auto g = second.checkpoint(
              [](const Tensor& t) { return torch::silu(t.tanh() * t); }, h);
          z = b.consumer(g);
          if (reverse) {
            second.discard(z);
            first.discard(g);
          } else {
            first.discard(g);
            second.discard(z);
          }
        }
        loss(z).backward();
        return b.grads();
      },
      2 * kH);
}

TEST(OutputDiscard, RegionsThatFeedEachOther) {
  chained(false);
}

TEST(OutputDiscard, RegionsThatFeedEachOtherDiscardedInReverse) {
  chained(true);
}

TEST(OutputDiscard, RegionInsideARegion) {
  expect_same_as_plain(
      [](Block& b) {
        auto outer = b.make();
        const auto h = outer.checkpoint(
            [&](const Tensor& t) { return torch::silu(b.forward(t)); }, b.x);
        const auto z = b.inner(h);
        outer.discard(z);
        loss(z).backward();
        return b.grads();
      },
      kH + kH / 4);
}

TEST(OutputDiscard, InsideAScopeOfAnyPolicy) {
  for (const auto& policy : {Policy::none(), drop_all(), Policy::full(), Policy::cheap()}) {
    SCOPED_TRACE(policy.describe());
    expect_same_as_plain(
        [&](Block& b) {
          Tensor z;
          {
            Recompute scope(policy);
            z = b.forward(b.x).sin();
          }
          loss(z).backward();
          return b.grads();
        },
        kH);
  }
}

TEST(OutputDiscard, LoopOverLayers) {
  expect_same_as_plain(
      [](Block& b) {
        auto x = b.x;
        for (int i = 0; i < 6; ++i) {
          x = x + b.forward(x);
        }
        loss(x).backward();
        return b.grads();
      },
      6 * kH);
}

TEST(OutputDiscard, ExceptionBetweenForwardAndDiscard) {
  expect_same_as_plain(
      [](Block& b) {
        auto ckpt = b.make();
        const auto inner = [&](const Tensor& t) { return b.inner(t); };
        EXPECT_THROW({ ckpt.checkpoint(inner, b.x).view({5}); }, c10::Error);
        const auto z = b.consumer(ckpt.checkpoint(inner, b.x));
        ckpt.discard(z);
        loss(z).backward();
        return b.grads();
      },
      kH);
}

TEST(OutputDiscard, ExceptionInTheFunctionLeavesNoScopeOpen) {
  Block b{true};
  auto ckpt = b.make();
  const auto broken = [](const Tensor&) -> Tensor { throw std::logic_error("the function's own"); };
  EXPECT_THROW(ckpt.checkpoint(broken, b.x), std::logic_error);
  EXPECT_FALSE(is_recording());
}

TEST(OutputDiscard, NeverCalled) {
  expect_same_as_plain(
      [](Block& b) {
        auto ckpt = b.make();
        loss(b.consumer(ckpt.checkpoint([&](const Tensor& t) { return b.inner(t); }, b.x)))
            .backward();
        return b.grads();
      },
      0);
}

TEST(OutputDiscard, CalledTwiceFreesNothingMore) {
  expect_same_as_plain(
      [](Block& b) {
        auto ckpt = b.make();
        const auto z = b.consumer(
            ckpt.checkpoint([&](const Tensor& t) { return b.inner(t); }, b.x));
        ckpt.discard(z);
        ckpt.discard(z);
        loss(z).backward();
        return b.grads();
      },
      kH);
}

// ---- backward

TEST(OutputDiscard, BackwardTwice) {
  expect_same_as_plain(
      [](Block& b) {
        const auto total = loss(b.forward(b.x));
        total.backward({}, /*retain_graph=*/true);
        total.backward();
        return b.grads();
      },
      kH);
}

TEST(OutputDiscard, DoubleBackward) {
  expect_same_as_plain(
      [](Block& b) {
        const auto grad = torch::autograd::grad(
            {loss(b.forward(b.x))}, {b.x}, {}, true, /*create_graph=*/true)[0];
        grad.square().sum().backward();
        return b.grads();
      },
      kH);
}

TEST(OutputDiscard, GradientOfOneTensorTouchesNoOther) {
  expect_same_as_plain(
      [](Block& b) {
        auto results = torch::autograd::grad({loss(b.forward(b.x))}, {b.x});
        for (const auto& grad : b.grads()) {
          EXPECT_FALSE(grad.defined());
        }
        return results;
      },
      kH);
}

TEST(OutputDiscard, BackwardIntoASubset) {
  expect_same_as_plain(
      [](Block& b) {
        loss(b.forward(b.x)).backward({}, std::nullopt, false, std::vector<Tensor>{b.down});
        return b.grads();
      },
      kH);
}

TEST(OutputDiscard, BackwardOnAnotherThreadThatReadsABranch) {
  expect_same_as_plain(
      [](Block& b) {
        auto ckpt = b.make();
        Tensor branch;
        {
          const auto h = ckpt.checkpoint([&](const Tensor& t) { return b.inner(t); }, b.x);
          branch = h.square().sum();
          ckpt.discard(b.consumer(h));
        }
        std::thread([&] { branch.backward(); }).join();
        return b.grads();
      },
      kH);
}

TEST(OutputDiscard, BackwardOnTwoThreadsAtOnce) {
  expect_same_as_plain(
      [](Block& b) {
        const auto total = loss(b.forward(b.x));
        std::vector<Tensor> found[2];
        std::vector<std::thread> threads;
        for (auto& grads : found) {
          threads.emplace_back(
              [&] { grads = torch::autograd::grad({total}, {b.x, b.up, b.down}, {}, true); });
        }
        for (auto& thread : threads) {
          thread.join();
        }
        found[0].insert(found[0].end(), found[1].begin(), found[1].end());
        return found[0];
      },
      kH);
}

TEST(OutputDiscard, ChangesAfterForwardRaiseWhatAutogradRaises) {
  for (const bool real : {false, true}) {
    for (const char* what : {"input", "weight", "output"}) {
      SCOPED_TRACE(what);
      Block b{real};
      auto ckpt = b.make();
      const auto in = b.x * 2;
      const auto deep = leaf({kHidden, kHidden}, 8);
      const auto h = ckpt.checkpoint(
          [&](const Tensor& t) { return torch::linear(b.inner(t), deep); }, in);
      const auto z = b.consumer(h);
      ckpt.discard(z);
      {
        torch::NoGradGuard guard;
        (std::string(what) == "input" ? in : std::string(what) == "weight" ? deep : h).mul_(3);
      }
      expect_has(text_of([&] { loss(z).backward(); }), "modified by an inplace operation");
      EXPECT_EQ(b.freed, real ? kH : 0);
    }
  }
}

TEST(OutputDiscard, GraphThatWasFreedRaisesWhatAutogradRaises) {
  Block b{true};
  const auto total = loss(b.forward(b.x));
  total.backward();
  expect_has(text_of([&] { total.backward(); }), "backward through the graph a second time");
}

// ---- errors

TEST(OutputDiscard, StorageThatSomebodyElseHoldsIsRefused) {
  Block b{true};
  auto ckpt = b.make();
  std::vector<Tensor> cache;
  const auto caching = [&](const Tensor& t) {
    const auto h = b.inner(t);
    cache.push_back(h.detach());
    return h;
  };
  const auto h = ckpt.checkpoint(caching, b.x);
  const auto z = b.consumer(h);
  const auto text = text_of([&] { ckpt.discard(z); });
  expect_has(
      text,
      "region \"ffn\": output 0 (Float [2, 3, 32]) does not have its storage to itself: 1 more "
      "tensor");
  expect_has(text, "Nothing was freed. Fix:");
  EXPECT_TRUE(same_bits(cache[0], h));
  loss(z).backward();
  Block plain{false};
  loss(plain.forward(plain.x)).backward();
  EXPECT_TRUE(same_bits(plain.x.grad(), b.x.grad()));
}

TEST(OutputDiscard, MemoryInUseOutsideTorchIsRefused) {
  Block b{true};
  auto ckpt = b.make();
  const auto h = ckpt.checkpoint([&](const Tensor& t) { return b.inner(t); }, b.x);
  h.storage().unsafeGetStorageImpl()->set_resizable(false);  // as Tensor.numpy() does
  expect_has(text_of([&] { ckpt.discard(b.consumer(h)); }), "in use outside torch");
}

TEST(OutputDiscard, DiscardBeforeAnyCallSaysWhatToDo) {
  OutputDiscardCheckpoint ckpt;
  expect_has(
      text_of([&] { ckpt.discard_output_and_register_recompute(leaf({3})); }),
      "nothing to discard");
  ckpt.checkpoint([](const Tensor& t) { return t.sin(); }, leaf({3}));
  expect_has(
      text_of([&] { ckpt.discard_output_and_register_recompute(Tensor()); }), "an undefined one");
}

TEST(OutputDiscard, ReadPastTheDispatcherSaysWhatHappened) {
  Block b{true};
  auto ckpt = b.make();
  const auto h = ckpt.checkpoint([&](const Tensor& t) { return b.inner(t); }, b.x);
  const auto z = b.consumer(h);
  ckpt.discard(z);
  for (const auto& read : std::vector<std::function<void()>>{
           [&] { h.data_ptr(); },
           [&] { h.const_data_ptr(); },
           [&] { h.mutable_data_ptr(); },
           [&] { h.data_ptr<float>(); },
           [&] { h.storage().data(); },
           [&] { h.storage().data_ptr(); }}) {
    expect_has(text_of(read), "output 0 (Float [2, 3, 32]) was discarded and is not back yet");
  }
  std::string text;
  std::thread([&] { text = text_of([&] { h.sum(); }); }).join();
  expect_has(text, "on another thread");
  loss(z).backward();
  EXPECT_NE(h.const_data_ptr(), nullptr);
}

TEST(OutputDiscard, ReplayThatFailsCanBeTriedAgain) {
  Block b{true};
  const auto in = b.x * 2;
  const auto total = loss(b.forward(in));
  auto* storage = in.storage().unsafeGetStorageImpl();
  const auto bytes = storage->nbytes();
  storage->set_nbytes(0);  // as FSDP releases a parameter
  EXPECT_THROW(total.backward({}, /*retain_graph=*/true), ReplayMismatch);
  storage->set_nbytes(bytes);
  for (auto& tensor : {b.x, b.up, b.bias, b.down}) {
    tensor.mutable_grad() = Tensor();
  }
  total.backward();
  Block plain{false};
  loss(plain.forward(plain.x * 2)).backward();
  const auto expected = plain.grads(), found = b.grads();
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(same_bits(expected[i], found[i])) << i;
  }
}

// ---- memory

struct Measured {
  int64_t held;
  int64_t left;
  std::vector<Tensor> grads;
};

// Stacked blocks, activations only: gradients exist before.
Measured stacked(bool real, bool discard, size_t layers) {
  Block b{real};
  for (auto& tensor : {b.x, b.up, b.bias, b.down}) {
    tensor.mutable_grad() = torch::zeros_like(tensor);
  }
  MemoryMeter meter;
  Measured measured;
  {
    auto x = b.x;
    for (size_t i = 0; i < layers; ++i) {
      auto ckpt = b.make();
      const auto z = b.consumer(ckpt.checkpoint([&](const Tensor& t) { return b.inner(t); }, x));
      if (discard) {
        ckpt.discard(z);
      }
      x = x + z;
    }
    auto total = x.sum();
    x = Tensor();
    measured.held = meter.current() - 4;
    total.backward();
  }
  measured.left = meter.current();
  measured.grads = b.grads();
  return measured;
}

TEST(OutputDiscard, StackOfBlocksFallsByExactlyTheOutputs) {
  constexpr int64_t kLayers = 8, kX = kH / 4;
  const auto plain = stacked(false, false, kLayers);
  const auto called = stacked(true, false, kLayers);
  const auto discarded = stacked(true, true, kLayers);
  for (size_t i = 0; i < plain.grads.size(); ++i) {
    EXPECT_GT(plain.grads[i].abs().max().item<double>(), 0);
    EXPECT_TRUE(same_bits(plain.grads[i], called.grads[i])) << i;
    EXPECT_TRUE(same_bits(plain.grads[i], discarded.grads[i])) << i;
  }
  EXPECT_EQ(plain.held, static_cast<int64_t>(kLayers * 2 * kH + (kLayers - 1) * kX));
  EXPECT_EQ(called.held, static_cast<int64_t>(kLayers * kH + (kLayers - 1) * kX));
  EXPECT_EQ(discarded.held, called.held - static_cast<int64_t>(kLayers * kH));
  EXPECT_EQ(plain.left + called.left + discarded.left, 0);
}

TEST(OutputDiscard, ScopeWithCheapReachesTheSameMemoryWithoutDiscard) {
  constexpr int kLayers = 8;
  const auto run = [&](bool discard) {
    Block b{discard};
    MemoryMeter meter;
    std::optional<Recompute> scope;
    if (!discard) {
      scope.emplace(Policy::cheap());
    }
    auto x = b.x;
    for (int i = 0; i < kLayers; ++i) {
      auto ckpt = b.make();
      Tensor z;
      {
        const auto up = torch::linear(x, b.up, b.bias);
        z = b.consumer(ckpt.checkpoint([](const Tensor& t) { return torch::silu(t); }, up));
      }
      ckpt.discard(z);
      x = x + z;
    }
    if (scope) {
      scope->close();
    }
    const auto held = meter.current();
    loss(x).backward();
    return std::make_pair(held, b.grads());
  };
  const auto discarded = run(true), cheap = run(false);
  EXPECT_EQ(discarded.first, static_cast<int64_t>(kLayers * (kH + kH / 4)));
  EXPECT_EQ(cheap.first, discarded.first);
  for (size_t i = 0; i < cheap.second.size(); ++i) {
    EXPECT_TRUE(same_bits(cheap.second[i], discarded.second[i])) << i;
  }
}

TEST(OutputDiscard, GraphThatDiesWithoutBackwardLeavesNothing) {
  Block b{true};
  OutputDiscardCheckpoint kept;  // the object may outlive its calls
  MemoryMeter meter;
  for (const bool discard : {true, false}) {
    {
      const auto z = b.consumer(
          kept.checkpoint([&](const Tensor& t) { return b.inner(t); }, b.x * 2));
      if (discard) {
        EXPECT_EQ(kept.discard_output_and_register_recompute(z), kH);
      }
      EXPECT_GT(meter.current(), 0);
    }
    EXPECT_EQ(meter.current(), 0);
  }
}

TEST(OutputDiscard, LongChainOfRegionsIsBroughtBackAndDiesFlat) {
  const auto run = [](bool real, bool backward) {
    size_t freed = 0;
    const auto x = leaf({16});
    {
      auto y = x;
      std::optional<Checkpoint> before;
      for (int i = 0; i < 8000; ++i) {
        Checkpoint ckpt{real, &freed};
        y = ckpt.checkpoint([](const Tensor& t) { return (t * 1.01).sin(); }, y);
        if (before) {
          before->discard(y);
        }
        before.emplace(std::move(ckpt));
      }
      if (backward) {
        y.sum().backward();
      }
    }
    return std::make_pair(x.grad(), freed);
  };
  const auto plain = run(false, true), found = run(true, true);
  EXPECT_TRUE(same_bits(plain.first, found.first));
  EXPECT_EQ(found.second, size_t{7999 * 16 * 4});
  EXPECT_EQ(run(true, false).second, found.second);
}

}  // namespace
}  // namespace retape::testing
