// Bad input gets a clear error, and nothing is lost.
#include "support.h"

#include <retape/replayable.h>

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/library.h>

#include <thread>

namespace retape::testing {
namespace {

template <typename Error>
std::string text_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected an error";
  return "";
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

void expect_has_not(const std::string& text, const std::string& part) {
  EXPECT_EQ(text.find(part), std::string::npos) << text;
}

// One more row each time that it runs, which its tag says it does not do.
Tensor grows(const Tensor& x) {
  static int64_t rows = 0;
  return x.repeat({++rows, 1});
}

TORCH_LIBRARY(retape_errors_test, m) {
  m.def("grows(Tensor x) -> Tensor", {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(retape_errors_test, CPU, m) {
  m.impl("grows", &grows);
}

TEST(Errors, UnknownPolicyNameListsTheKnownOnes) {
  const auto text = text_of<UsageError>([] { Policy::named("fulll"); });
  expect_has(text, "[Policy::named]");
  expect_has(text, "\"none\", \"full\" or \"cheap\"");
}

TEST(Errors, UnknownOpNameOffersTheNearest) {
  expect_has(
      text_of<UsageError>([] { Policy::full().keep_ops({"aten::softmaxx"}); }), "did you mean");
  expect_has(
      text_of<UsageError>([] { Policy::full().drop_ops({"aten::add.Nothing"}); }),
      "no op is called");
}

TEST(Errors, CompositeOpNameSaysThatItsPartsAreRecorded) {
  expect_has(text_of<UsageError>([] { Policy::full().keep_ops({"aten::linear"}); }), "composite");
}

TEST(Errors, SavedInputChangedInPlaceRaisesWhatAutogradRaises) {
  for (const auto& policy : {Policy::none(), drop_all(), Policy::full(), Policy::cheap()}) {
    const auto x = leaf({3});
    Tensor h, loss;
    {
      Recompute scope(policy);
      h = x * 2;
      loss = h.sin().sum();
    }
    h.mul_(3);
    const auto text = text_of<c10::Error>([&] { loss.backward(); });
    expect_has(text, "modified by an inplace operation");
    expect_has(text, "version 1; expected version 0");
  }
}

TEST(Errors, SavedOutputChangedInPlaceInsideTheScopeRaises) {
  for (const auto& policy : {Policy::none(), drop_all(), Policy::full(), Policy::cheap()}) {
    const auto x = leaf({3});
    Tensor loss;
    {
      Recompute scope(policy);
      auto h = (x * 2).exp();
      h.mul_(3);
      loss = h.sum();
    }
    expect_has(text_of<c10::Error>([&] { loss.backward(); }), "modified by an inplace operation");
  }
}

TEST(Errors, WeightThatSteppedBeforeBackwardRaises) {
  const auto x = leaf({3, 3});
  auto w = leaf({3, 3}, 8);
  Tensor loss;
  {
    Recompute scope(drop_all());
    loss = (x * 2).mm(w).sum();
  }
  {
    torch::NoGradGuard guard;
    w.add_(1);
  }
  expect_has(text_of<c10::Error>([&] { loss.backward(); }), "modified by an inplace operation");
}

TEST(Errors, OnlyAScopeThatHasANameIsCalledByIt) {
  const auto closed_twice = [](const std::string& name) {
    Recompute scope(drop_all(), name);
    scope.close();
    return text_of<UsageError>([&] { scope.close(); });
  };
  EXPECT_EQ(
      closed_twice(""),
      "[Recompute::close] the scope is closed already. Fix: close it once, or let it go out of "
      "scope.");
  expect_has(
      closed_twice("block"), "[Recompute::close] region \"block\": the scope is closed already.");
}

TEST(Errors, TheHintOfAutogradIsGivenUntilItIsFollowed) {
  const auto text = [](bool anomaly) {
    torch::autograd::DetectAnomalyGuard guard(/*check_nan=*/false);
    torch::autograd::AnomalyMode::set_enabled(anomaly, false);
    const auto x = leaf({3});
    Tensor h, loss;
    {
      Recompute scope(drop_all());
      h = x * 2;
      loss = h.sin().sum();
    }
    h.mul_(3);
    return text_of<c10::Error>([&] { loss.backward(); });
  };
  const std::string hint = "Hint: enable anomaly detection";
  expect_has(text(false), hint);
  expect_has_not(text(true), hint);
}

// A loss whose backward replays from a tensor of 24 bytes that autograd did not save.
struct FromGiven {
  Tensor x = leaf({2, 3});
  Tensor given = torch::ones({2, 3});
  Tensor loss;

  FromGiven() {
    Recompute scope(drop_all(), "block");
    loss = (x + given).sin().sum();
  }
};

TEST(Errors, WhatReplayStartsFromAndWasChangedIsDescribed) {
  FromGiven step;
  step.given.add_(1);
  EXPECT_EQ(
      text_of<ReplayMismatch>([&] { step.loss.backward(); }),
      "[recompute] region \"block\": a tensor of 24 bytes that aten::add read in forward, Float "
      "[2, 3], and "
      "that backward replays it from, has been modified by an inplace operation: expected version "
      "0, got 1. Fix: run backward before changing it, or change it inside the scope, "
      "where the tape sees it and keeps a copy.");
}

TEST(Errors, WhatReplayStartsFromAndWasResizedIsDescribed) {
  FromGiven step;
  step.given.resize_({20, 3});
  expect_has(
      text_of<ReplayMismatch>([&] { step.loss.backward(); }),
      "that backward replays it from, was resized: expected 24 bytes, got 240. Fix: ");
}

TEST(Errors, AnOpThatMakesAnotherSizeInReplayIsNamed) {
  replayable("retape_errors_test::grows");
  const auto x = leaf({1, 3});
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("retape_errors_test::grows", "")
                      .typed<Tensor(const Tensor&)>();
  Tensor loss;
  {
    Recompute scope(drop_all(), "block");
    loss = (op.call(x.detach() * 2) * x).sum();
  }
  EXPECT_EQ(
      text_of<ReplayMismatch>([&] { loss.backward(); }),
      "[recompute] region \"block\": retape_errors_test::grows replayed a result of another size: "
      "expected 12 bytes, "
      "got 24. Fix: keep it: Policy::keep_ops({\"retape_errors_test::grows\"}).");
}

TEST(Errors, CompiledAutogradIsRefused) {
  const auto x = leaf({3});
  Tensor y;
  {
    Recompute scope(drop_all());
    y = (x * 2).sin();
  }
  const auto* node = dynamic_cast<torch::autograd::generated::SinBackward0*>(y.grad_fn().get());
  ASSERT_NE(node, nullptr);
  const auto text = text_of<UsageError>([&] { node->self_.retrieve_unpack_hook_data(); });
  expect_has(text, "compiled autograd traces backward");
  expect_has(text, "Fix: ");
}

TEST(Errors, ScopesAreClosedFromTheInside) {
  Recompute outer(drop_all(), "outer");
  Recompute inner(drop_all(), "inner");
  expect_has(text_of<UsageError>([&] { outer.close(); }), "still open");
  EXPECT_FALSE(is_recording());  // both are closed
  expect_has(text_of<UsageError>([&] { inner.close(); }), "closed already");
  expect_has(text_of<UsageError>([&] { outer.close(); }), "closed already");
}

TEST(Errors, AScopeIsClosedOnItsOwnThread) {
  Recompute scope(drop_all(), "mine");
  std::string text;
  std::thread([&] { text = text_of<UsageError>([&] { scope.close(); }); }).join();
  expect_has(text, "another thread");
  expect_has(text, "\"mine\"");
  EXPECT_TRUE(is_recording());
  scope.close();
}

TEST(Errors, MeterOfADeviceThatIsNotThereSaysSo) {
  MeterOptions options;
  options.device = c10::Device(c10::kCUDA, 0);
  if (!torch::cuda::is_available()) {
    expect_has(
        text_of<UsageError>([&] { MemoryMeter meter(options); }),
        "no caching allocator for cuda:0");
  }
  options.timeline = true;
  expect_has(text_of<UsageError>([&] { MemoryMeter meter(options); }), "a timeline is for the CPU");
}

TEST(Errors, PolicyFunctionThatThrowsComesThroughAndTheScopeGoesOn) {
  const auto x = leaf({3});
  bool armed = true;
  Recompute scope(Policy::function([&](const ValueInfo&) {
    if (armed) {
      throw std::logic_error("the user's own");
    }
    return Decision::Drop;
  }));
  EXPECT_THROW(x * 2, std::logic_error);
  armed = false;
  const auto loss = (x * 2).sin().sum();
  scope.close();
  loss.backward();
  EXPECT_TRUE(same_bits(x.grad(), (x.detach() * 2).cos() * 2));
}

}  // namespace
}  // namespace retape::testing
