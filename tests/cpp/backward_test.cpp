// Every way to run backward, and state that is clean after every way it can fail.
#include "support.h"

#include <retape/replayable.h>

#include <torch/library.h>

#include <chrono>

namespace retape::testing {
namespace {

Tensor network(const Tensor& x, const Tensor& w) {
  return torch::softmax(torch::gelu((x * 1.5).mm(w)), -1).mm(w).sin();
}

struct Subject {
  Tensor x = leaf({6, 6});
  Tensor w = leaf({6, 6}, 8);
  void clear() {
    x.mutable_grad() = Tensor();
    w.mutable_grad() = Tensor();
  }
};

TEST(Backward, RetainedGraphGivesTheSameTwice) {
  Subject plain;
  auto loss = network(plain.x, plain.w).sum();
  loss.backward({}, true);
  loss.backward();

  Subject ours;
  Recompute scope(drop_all());
  loss = network(ours.x, ours.w).sum();
  scope.close();
  loss.backward({}, true);
  const auto once = scope.stats().ops_replayed;
  loss.backward();
  EXPECT_GT(once, 0u);
  EXPECT_EQ(scope.stats().ops_replayed, 2 * once);
  EXPECT_TRUE(same_bits(plain.x.grad(), ours.x.grad()));
  EXPECT_TRUE(same_bits(plain.w.grad(), ours.w.grad()));
}

TEST(Backward, EveryOpIsReplayedAtMostOnce) {
  Subject ours;
  Recompute scope(drop_all());
  const auto loss = network(ours.x, ours.w).sum();
  scope.close();
  loss.backward();
  EXPECT_LE(scope.stats().ops_replayed, scope.stats().ops_recorded);
}

TEST(Backward, TimeInReplayIsCountedWhereItIsAskedFor) {
  using Clock = std::chrono::steady_clock;
  Subject ours;
  Recompute scope(drop_all(), "timed", /*timed=*/true);
  auto loss = network(ours.x, ours.w).sum();
  scope.close();
  EXPECT_EQ(scope.stats().replay_ns, 0u);
  const auto start = Clock::now();
  loss.backward();
  const std::chrono::nanoseconds whole = Clock::now() - start;
  EXPECT_GT(scope.stats().replay_ns, 0u);
  EXPECT_LE(scope.stats().replay_ns, static_cast<uint64_t>(whole.count()));  // all on this thread

  Recompute untimed(drop_all());
  loss = network(ours.x, ours.w).sum();
  untimed.close();
  loss.backward();
  EXPECT_GT(untimed.stats().ops_replayed, 0u);
  EXPECT_EQ(untimed.stats().replay_ns, 0u);
}

TEST(Backward, OfNestedScopesTheOneWhoseValueWasAskedForIsTimed) {
  Subject ours;
  Recompute outer(drop_all(), "outer", /*timed=*/true);
  auto h = (ours.x * 1.5).exp();
  Recompute inner(drop_all(), "inner", /*timed=*/true);
  h = h.sin();
  inner.close();
  outer.close();
  h.sum().backward();
  EXPECT_GT(outer.stats().ops_replayed, 0u);
  EXPECT_GT(outer.stats().replay_ns, 0u);
  EXPECT_EQ(inner.stats().replay_ns, 0u);
}

TEST(Backward, TwoLossesInEitherOrder) {
  for (const bool first : {true, false}) {
    Subject plain;
    auto h = network(plain.x, plain.w);
    (first ? h.exp() : h.cos()).sum().backward({}, true);
    (first ? h.cos() : h.exp()).sum().backward();
    Subject ours;
    Recompute scope(drop_all());
    h = network(ours.x, ours.w);
    const auto a = h.exp().sum();
    const auto b = h.cos().sum();
    scope.close();
    (first ? a : b).backward({}, true);
    (first ? b : a).backward();
    EXPECT_TRUE(same_bits(plain.x.grad(), ours.x.grad()));
    EXPECT_TRUE(same_bits(plain.w.grad(), ours.w.grad()));
  }
}

TEST(Backward, DoubleBackward) {
  const auto second = [](Subject& s, bool recompute) {
    Tensor loss;
    {
      std::optional<Recompute> scope;
      if (recompute) {
        scope.emplace(drop_all());
      }
      loss = network(s.x, s.w).sum();
    }
    const auto grads = torch::autograd::grad({loss}, {s.x, s.w}, {}, true, true);
    (grads[0].square().sum() + grads[1].sin().sum()).backward();
  };
  Subject plain;
  Subject ours;
  second(plain, false);
  second(ours, true);
  EXPECT_TRUE(same_bits(plain.x.grad(), ours.x.grad()));
  EXPECT_TRUE(same_bits(plain.w.grad(), ours.w.grad()));
}

TEST(Backward, GradWithRespectToSomeInputs) {
  Subject plain;
  const auto expected = torch::autograd::grad({network(plain.x, plain.w).sum()}, {plain.w})[0];
  Subject ours;
  Recompute scope(drop_all());
  const auto loss = network(ours.x, ours.w).sum();
  scope.close();
  EXPECT_TRUE(same_bits(torch::autograd::grad({loss}, {ours.w})[0], expected));
}

TEST(Backward, InsideForward) {
  const auto penalty = [](const Tensor& x, const Tensor& w) {
    const auto y = network(x, w);
    const auto g = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
    return y.sum() + g.square().sum();
  };
  Subject plain;
  penalty(plain.x, plain.w).backward();
  for (const auto& policy : {drop_all(), Policy::full(), Policy::cheap()}) {
    Subject ours;
    Tensor loss;
    {
      Recompute scope(policy);
      loss = penalty(ours.x, ours.w);
    }
    loss.backward();
    EXPECT_TRUE(same_bits(plain.x.grad(), ours.x.grad())) << policy.describe();
    EXPECT_TRUE(same_bits(plain.w.grad(), ours.w.grad())) << policy.describe();
  }
}

TEST(Backward, GraphThatDiesWithoutBackwardFreesEverything) {
  MemoryMeter meter;
  for (const auto& policy : {Policy::none(), drop_all(), Policy::full(), Policy::cheap()}) {
    Subject ours;
    const auto before = meter.current();
    {
      Recompute scope(policy);
      const auto loss = network(ours.x, ours.w).sum();
    }
    EXPECT_EQ(meter.current(), before) << policy.describe();
  }
}

TEST(Backward, GraphThatDiesInsideItsScopeFreesEverything) {
  MemoryMeter meter;
  for (const auto& policy : {Policy::none(), drop_all(), Policy::full(), Policy::cheap()}) {
    Subject ours;
    Recompute scope(policy);
    {
      network(ours.x, ours.w).sum().backward();
    }
    const auto before = meter.current();
    for (int i = 0; i < 300; ++i) {
      ours.clear();
      network(ours.x, ours.w).sum().backward();
    }
    // What the policy has not decided on yet may be held: a layer, not 300.
    EXPECT_LE(meter.current() - before, 64 * 1024) << policy.describe();
  }
}

TEST(Backward, AThousandStepsLeaveTheByteCountWhereItWas) {
  MemoryMeter meter;
  Subject ours;
  int64_t after_first = 0;
  for (int i = 0; i < 1000; ++i) {
    ours.clear();
    Tensor loss;
    {
      Recompute scope(i % 2 == 0 ? Policy::full() : Policy::cheap());
      loss = torch::dropout(network(ours.x, ours.w), 0.1, true).sum();
    }
    loss.backward();
    loss = Tensor();
    if (i == 0) {
      after_first = meter.current();
    }
  }
  EXPECT_EQ(meter.current(), after_first);
}

TEST(Backward, GraphAlreadyFreedGivesAutogradsError) {
  Subject ours;
  Recompute scope(drop_all());
  const auto loss = network(ours.x, ours.w).sum();
  scope.close();
  loss.backward();
  try {
    loss.backward();
    FAIL() << "a freed graph must not run again";
  } catch (const c10::Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("backward through the graph a second time"),
        std::string::npos);
  }
}

TEST(Backward, ExceptionInForwardLeavesNothingBehind) {
  Subject ours;
  try {
    Recompute scope(drop_all());
    network(ours.x, ours.w).mm(torch::ones({3, 3}));
    FAIL() << "shapes do not fit";
  } catch (const c10::Error&) {
  }
  EXPECT_FALSE(is_recording());
  EXPECT_FALSE(c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::DeferredInit));
  network(ours.x, ours.w).sum().backward();
  EXPECT_TRUE(ours.x.grad().defined());
}

TEST(Backward, FailedOpInsideTheScopeDoesNotSpoilTheRest) {
  Subject plain;
  network(plain.x, plain.w).sum().backward();
  Subject ours;
  Tensor loss;
  {
    Recompute scope(drop_all());
    auto h = (ours.x * 1.5);
    EXPECT_THROW(h.mm(torch::ones({3, 3})), c10::Error);
    EXPECT_THROW(h.detach().add_(torch::ones({7})), c10::Error);
    loss = torch::softmax(torch::gelu(h.mm(ours.w)), -1).mm(ours.w).sin().sum();
  }
  loss.backward();
  EXPECT_TRUE(same_bits(plain.x.grad(), ours.x.grad()));
}

struct Throws : torch::autograd::Function<Throws> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext*, torch::autograd::tensor_list) {
    throw std::runtime_error("the user's own");
  }
};

TEST(Backward, ExceptionInTheUsersBackwardComesThroughAndAnotherPassWorks) {
  Subject ours;
  Recompute scope(drop_all());
  const auto h = network(ours.x, ours.w);
  const auto bad = Throws::apply(h).sum();
  const auto good = h.sum();
  scope.close();
  EXPECT_THROW(bad.backward({}, true), std::runtime_error);
  ours.clear();
  good.backward();
  Subject plain;
  network(plain.x, plain.w).sum().backward();
  EXPECT_TRUE(same_bits(plain.x.grad(), ours.x.grad()));
}

// Where somebody else has a tensor, and an op in whose second run he lets go of it.
Tensor held_elsewhere;

Tensor doubled_while_it_goes(const Tensor& x) {
  static int runs = 0;
  if (++runs == 2) {
    held_elsewhere = Tensor();
  }
  return x * 2;
}

TORCH_LIBRARY(retape_backward_test, m) {
  m.def("doubled_while_it_goes(Tensor x) -> Tensor", {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(retape_backward_test, CPU, m) {
  m.impl("doubled_while_it_goes", &doubled_while_it_goes);
}

TEST(Backward, AnInputThatGoesWhileItsOpIsWaitingIsReplayed) {
  replayable("retape_backward_test::doubled_while_it_goes");
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("retape_backward_test::doubled_while_it_goes", "")
                      .typed<Tensor(const Tensor&)>();
  const auto x = leaf({4});
  Tensor loss;
  {
    Recompute scope(drop_all());
    held_elsewhere = x.detach() * 3;
    loss = (op.call(x.detach().sin()) * held_elsewhere * x).sum();
  }
  loss.backward();
  EXPECT_FALSE(held_elsewhere.defined());
  EXPECT_TRUE(same_bits(x.grad(), x.detach().sin() * 2 * (x.detach() * 3)));
}

// Asks twice for what it saved, as a function may that is called in parts.
struct AsksTwice : torch::autograd::Function<AsksTwice> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    return x.clone();
  }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext* ctx, torch::autograd::tensor_list grads) {
    const auto first = ctx->get_saved_variables()[0].clone();
    return {grads[0] * first * ctx->get_saved_variables()[0]};
  }
};

TEST(Backward, WhatIsAskedForTwiceInAPassComesTwiceAndIsNotHeld) {
  MemoryMeter meter;
  const auto gradient = [&](bool recompute) {
    const auto x = leaf({64, 64});
    Tensor loss;
    {
      std::optional<Recompute> scope;
      if (recompute) {
        scope.emplace(drop_all());
      }
      auto copied = torch::empty({64, 64});
      copied.copy_(x.detach() + 1);
      loss = AsksTwice::apply(copied * 2 + x).sum();
    }
    const auto held = meter.current();
    loss.backward({}, /*retain_graph=*/true);
    const auto grad = x.grad();
    EXPECT_EQ(meter.current(), held + static_cast<int64_t>(grad.nbytes()));
    return grad;
  };
  EXPECT_TRUE(same_bits(gradient(false), gradient(true)));
}

TEST(Backward, ExceptionInReplayIsReportedAndNothingIsLost) {
  Subject ours;
  auto given = torch::ones({6, 6});
  Recompute scope(drop_all());
  const auto loss = network(ours.x + given, ours.w).sum();
  scope.close();
  given.add_(1);  // where no scope sees it; plain autograd never saved it
  try {
    loss.backward({}, true);
    FAIL() << "what backward replays from has changed";
  } catch (const ReplayMismatch& error) {
    EXPECT_NE(
        std::string(error.what()).find("modified by an inplace operation"), std::string::npos);
  }
  EXPECT_FALSE(ours.w.grad().defined() && ours.x.grad().defined());
}

}  // namespace
}  // namespace retape::testing
