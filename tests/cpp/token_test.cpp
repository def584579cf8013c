// What autograd holds in place of a saved tensor: whose it is, what it counts as, what it notices.
#include "support.h"

#include <ATen/SavedTensorHooks.h>
#include <torch/csrc/autograd/generated/Functions.h>

namespace retape::testing {
namespace {

constexpr int64_t kMiB = 1 << 20;

Tensor mib(uint64_t seed = 7) {
  return leaf({512, 512}, seed);
}

std::string text_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// ---- whose it is

// Hooks of the user, as far as a process without Python can have them.
struct UsersHooks {
  UsersHooks() {
    at::SavedTensorDefaultHooks::lazy_initialize();
    at::SavedTensorDefaultHooks::push_hooks({nullptr, nullptr}, {nullptr, nullptr});
  }
  ~UsersHooks() { at::SavedTensorDefaultHooks::pop_hooks(); }
};

Stats stats_of(const std::function<Tensor()>& forward, const Policy& policy = drop_all()) {
  Recompute scope(policy);
  const auto y = forward();
  scope.close();
  return scope.stats();
}

TEST(Token, HooksThatTheUserPushedInsideTheScopeWin) {
  const auto x = leaf({4});
  const auto stats = stats_of([&] {
    UsersHooks hooks;
    return x.sin().exp();
  });
  EXPECT_EQ(stats.values_saved, 0u);
}

TEST(Token, TheScopeWinsOverHooksThatWereThereBefore) {
  const auto x = leaf({4});
  UsersHooks hooks;
  EXPECT_EQ(stats_of([&] { return x.sin().exp(); }).values_saved, 2u);
}

TEST(Token, NothingIsSavedByTheScopeWhileAutogradIsTraced) {
  const auto x = leaf({4});
  const bool before = at::SavedTensorDefaultHooks::set_tracing(true);
  const auto stats = stats_of([&] { return x.sin().exp(); });
  at::SavedTensorDefaultHooks::set_tracing(before);
  EXPECT_EQ(stats.values_saved, 0u);
}

TEST(Token, WhatABackwardInsideTheScopeSavesIsPlain) {
  const auto x = leaf({4});
  Recompute scope(drop_all());
  const auto y = x.sin().exp().sum();
  const auto one = torch::ones({});
  const auto before = scope.stats();
  const auto g = torch::autograd::grad({y}, {x}, {one}, true, /*create_graph=*/true)[0];
  EXPECT_EQ(scope.stats().values_saved, before.values_saved);
  EXPECT_EQ(scope.stats().ops_recorded, before.ops_recorded);
}

TEST(Token, AScopeThatIsOpenedInsideABackwardRecordsWhatRunsThere) {
  const auto x = leaf({4});
  const auto inner = leaf({4}, 8);
  Stats stats;
  const auto y = x.sin();
  y.register_hook([&](const Tensor&) {
    torch::AutoGradMode on(true);
    Tensor loss;
    {
      Recompute scope(drop_all());
      loss = inner.sin().exp().sin().sum();
      stats = scope.stats();
    }
    loss.backward();
  });
  y.sum().backward();
  EXPECT_EQ(stats.values_dropped, 1u);  // what exp made
  const auto plain = leaf({4}, 8);
  plain.sin().exp().sin().sum().backward();
  EXPECT_TRUE(same_bits(plain.grad(), inner.grad()));
}

// ---- what it counts as

TEST(Token, KeptAndDroppedAddUpToWhatWasSaved) {
  const auto x = mib();
  const auto stats = stats_of([&] { return x.sin().sin().sin(); });
  EXPECT_EQ(stats.values_saved, 3u);
  EXPECT_EQ(stats.values_dropped, 2u);
  EXPECT_EQ(stats.values_kept, 1u);
  EXPECT_EQ(stats.bytes_dropped, static_cast<uint64_t>(2 * kMiB));
  EXPECT_EQ(stats.bytes_kept, static_cast<uint64_t>(kMiB));
  EXPECT_EQ(stats.bytes_given, static_cast<uint64_t>(kMiB));
}

TEST(Token, AValueThatIsSavedTwiceCountsOnce) {
  const auto x = mib();
  const auto stats = stats_of([&] {
    const auto h = x * 2;
    return h.sin() + h.cos() + x.sin() + x.cos();
  });
  EXPECT_EQ(stats.values_saved, 2u);
  EXPECT_EQ(stats.bytes_kept, static_cast<uint64_t>(kMiB));
}

TEST(Token, GivenAreLeavesAndTheirViews) {
  const auto given = [](const std::function<Tensor()>& forward) {
    return stats_of(forward).bytes_given / kMiB;
  };
  const auto x = mib();
  const auto buffer = mib(8).detach();
  const auto outside = mib(9).exp();
  EXPECT_EQ(given([&] { return x.sin(); }), 1u);
  EXPECT_EQ(given([&] { return x.t().sin(); }), 1u);
  EXPECT_EQ(given([&] { return x * buffer; }), 1u);
  EXPECT_EQ(given([&] { return x * buffer.t(); }), 1u);
  EXPECT_EQ(given([&] { return outside.sin(); }), 0u);
  EXPECT_EQ(given([&] { return outside.t().sin(); }), 0u);
}

TEST(Token, WhatTheScopeBeforeMadeIsGivenToTheNext) {
  const auto x = mib();
  Tensor h;
  {
    Recompute scope(drop_all());
    h = x.sin();
  }
  const auto stats = stats_of([&] { return h.exp().sin() + h.cos(); });
  EXPECT_EQ(stats.values_saved, 2u);
  EXPECT_EQ(stats.values_dropped, 1u);
}

// ---- what it notices

TEST(Token, AnErrorNamesTheTensorThatChanged) {
  auto w = leaf({3, 5});
  const auto x = leaf({2, 3}, 8);
  Tensor loss;
  {
    Recompute scope(drop_all());
    loss = x.mm(w).sum();
  }
  {
    torch::NoGradGuard guard;
    w.add_(1);
  }
  expect_has(
      text_of([&] { loss.backward(); }),
      "[CPUFloatType [3, 5]] is at version 1; expected version 0");
}

TEST(Token, AChangeBetweenBackwardAndDoubleBackwardRaises) {
  for (const bool recorded : {true, false}) {
    for (const auto& policy : {Policy::none(), drop_all()}) {
      SCOPED_TRACE(policy.describe() + (recorded ? " recorded" : " given"));
      const auto x = leaf({4});
      auto h = recorded ? Tensor() : x * 2;
      Tensor loss;
      {
        Recompute scope(policy);
        h = recorded ? x * 2 : h;
        loss = h.sin().sum();
      }
      const auto g = torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true)[0];
      {
        torch::NoGradGuard guard;
        h.mul_(3);
      }
      expect_has(text_of([&] { g.sum().backward(); }), "modified by an inplace operation");
    }
  }
}

TEST(Token, AChangeAfterOneThatLeftNoTraceRaisesInDoubleBackwardToo) {
  for (const bool recompute : {false, true}) {
    const auto x = leaf({4});
    Tensor h, loss;
    {
      std::optional<Recompute> scope;
      if (recompute) {
        scope.emplace(drop_all());
      }
      h = x * 2;
      loss = h.sin().sum();
      h.data().mul_(3);  // past the version counter: backward gets the changed bytes
    }
    const auto g = torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true)[0];
    EXPECT_TRUE(same_bits(g, (x.detach() * 2 * 3).cos() * 2));
    {
      torch::NoGradGuard guard;
      h.mul_(3);
    }
    expect_has(text_of([&] { g.sum().backward(); }), "modified by an inplace operation");
  }
}

// Writes into the tensor that it saved, in backward.
struct Spoils : torch::autograd::Function<Spoils> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    return x.clone();
  }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext* ctx, torch::autograd::tensor_list grads) {
    ctx->get_saved_variables()[0].mul_(100);
    return {grads[0] * 2};
  }
};

TEST(Token, AWriteToWhatBackwardWasGivenRaisesWhenItIsAskedForAgain) {
  for (const bool recompute : {false, true}) {
    const auto x = leaf({4});
    Tensor loss;
    {
      std::optional<Recompute> scope;
      if (recompute) {
        scope.emplace(drop_all());
      }
      const auto h = x * 2;
      loss = h.sin().sum();
      loss = loss + Spoils::apply(h).sum();  // the last to run in forward, the first in backward
    }
    const auto text = text_of([&] { loss.backward(); });
    expect_has(text, "modified by an inplace operation");
    expect_has(text, "version 1; expected version 0");
  }
}

TEST(Token, AWriteToWhatBackwardWasGivenIsNotReplayedFrom) {
  const auto step = [](const Tensor& x, bool recompute) {
    Tensor loss;
    {
      std::optional<Recompute> scope;
      if (recompute) {
        scope.emplace(drop_all());
      }
      const auto h = x * 2;
      loss = (h * 3).sin().sum();  // made from h, which nobody else saves
      loss = loss + Spoils::apply(h).sum();
    }
    loss.backward();
    return x.grad();
  };
  EXPECT_TRUE(same_bits(step(leaf({4}), false), step(leaf({4}), true)));
}

// ---- how long what it brings back lives

TEST(Token, ARetainedGraphHoldsNothingThatItReplayed) {
  const auto x = mib();
  MemoryMeter meter;
  Tensor loss;
  {
    Recompute scope(drop_all());
    loss = (x.sin().exp() * 2).sin().sum();
  }
  const auto held = meter.current();
  for (int pass = 0; pass < 2; ++pass) {
    loss.backward({}, /*retain_graph=*/true);
    x.mutable_grad() = Tensor();
    EXPECT_EQ(meter.current(), held);
  }
}

TEST(Token, WhatIsLookedAtOutsideABackwardStaysAsAutogradsOwnWould) {
  const auto x = mib();
  MemoryMeter meter;
  Tensor y;
  {
    Recompute scope(drop_all());
    y = ((x + 1) * 2).sin().sum();
  }
  const auto sine = y.grad_fn()->next_edge(0).function;
  auto* node = dynamic_cast<torch::autograd::generated::SinBackward0*>(sine.get());
  ASSERT_NE(node, nullptr);
  const auto held = meter.current();
  auto saved = node->self_.unpack();
  EXPECT_EQ(meter.current(), held + kMiB);
  EXPECT_TRUE(same_bits(saved, (x.detach() + 1) * 2));
  saved = Tensor();
  EXPECT_EQ(meter.current(), held + kMiB);
  EXPECT_TRUE(same_bits(node->self_.unpack(), (x.detach() + 1) * 2));
  y = Tensor();
}

TEST(Token, AUseThatDiedBeforeBackwardIsNotWaitedFor) {
  const auto x = mib();
  MemoryMeter meter;
  Tensor cosine, sine;
  {
    Recompute scope(drop_all());
    const auto h = x.sin();
    cosine = h.cos().sum();
    sine = (h * 2).sin().sum();
  }
  cosine = Tensor();
  const auto held = meter.current();
  sine.backward({}, /*retain_graph=*/true);
  x.mutable_grad() = Tensor();
  EXPECT_EQ(meter.current(), held);
}

TEST(Token, AUseThatDiedAfterItsPassLeavesTheOthersAsTheyWere) {
  const auto x = mib();
  MemoryMeter meter;
  Tensor first, second;
  Recompute scope(drop_all());
  {
    const auto h = x.sin();
    first = h.cos().sum();
    second = h.exp().sin().sum();
  }
  scope.close();
  first.backward({}, /*retain_graph=*/true);
  first = Tensor();
  const auto before = scope.stats().ops_replayed;
  second.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(
      scope.stats().ops_replayed - before, 2u);  // sin once more: its bytes went with the pass
  x.mutable_grad() = Tensor();
  EXPECT_EQ(meter.current(), 4);
}

// ---- tensors that no recipe knows

Tensor sparse(const Tensor& values) {
  return torch::sparse_coo_tensor(torch::tensor({{0, 1, 2}, {2, 0, 1}}), values, {3, 3});
}

TEST(Token, SparseTensorsAreSavedAsTheyAre) {
  expect_same(
      [](const auto& x) { return torch::mm(sparse(torch::ones({3})), x[0].sin()).sum(); },
      {leaf({3, 3})},
      /*replays=*/false);
  expect_same(
      [](const auto& x) { return torch::_sparse_mm(sparse(x[1] * 2), x[0].sin()).sum(); },
      {leaf({3, 3}), leaf({3}, 8)},
      /*replays=*/false);
}

TEST(Token, NestedTensorsAreSavedAsTheyAre) {
  expect_same(
      [](const auto& x) {
        const auto nested = at::_nested_tensor_from_tensor_list({x[1] * 2, x[2] * 2});
        return (at::nested_to_padded_tensor(nested.tanh(), 0.0) * x[0].sin()).sum();
      },
      {leaf({2, 3, 4}), leaf({3, 4}, 8).detach(), leaf({2, 4}, 9).detach()},
      /*replays=*/false);
}

TEST(Token, ASparseResultThatItsOwnOpSavedDoesNotHoldItself) {
  MemoryMeter meter;
  {
    const auto values = leaf({3});
    const auto before = meter.current();
    {
      Recompute scope(drop_all());
      const auto y = torch::tanh(sparse(values * 2));
    }
    EXPECT_EQ(meter.current(), before);
  }
}

TEST(Token, ASparseTensorThatChangedRaisesWhatAutogradRaises) {
  auto mask = sparse(torch::ones({3}));
  const auto x = leaf({3, 3});
  Tensor loss;
  {
    Recompute scope(drop_all());
    loss = torch::mm(mask, x.sin()).sum();
  }
  mask.mul_(2);
  expect_has(
      text_of([&] { loss.backward(); }),
      "modified by an inplace operation: [SparseCPUFloatType [3, 3]] is at version 1; expected "
      "version 0 instead");
}

}  // namespace
}  // namespace retape::testing
