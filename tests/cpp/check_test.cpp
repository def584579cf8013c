// check_every and Observer: is what replay makes what forward made?
#include <retape/retape.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>

namespace {

// A loss whose backward replays from memory that is changed past the dispatcher after forward.
struct UntrackedGuard {
  at::Tensor x = torch::ones({4, 8});
  at::Tensor w = torch::full({4, 8}, 0.5).requires_grad_();
  at::Tensor loss;

  UntrackedGuard() {
    retape::Recompute scope(retape::Policy::full(), "block");
    loss = (x * 2 + w).sin().sum();
  }
  void change() const { x.data_ptr<float>()[0] = 7; }
};

class Check : public ::testing::Test {
 protected:
  void TearDown() override { retape::check_every(0); }
};

TEST_F(Check, UncheckedAChangePastTheDispatcherIsNotNoticed) {
  UntrackedGuard step;
  step.change();
  EXPECT_NO_THROW(step.loss.backward());
}

TEST_F(Check, CheckedItRaisesAndNamesOpRegionAndValues) {
  retape::check_every(1);
  UntrackedGuard step;
  step.change();
  try {
    step.loss.backward();
    FAIL() << "expected a ReplayMismatch";
  } catch (const retape::ReplayMismatch& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("region \"block\""), std::string::npos) << text;
    EXPECT_NE(text.find("aten::mul"), std::string::npos) << text;
    EXPECT_NE(text.find("element 0 was 2 and is now 14"), std::string::npos) << text;
  }
  EXPECT_FALSE(step.w.grad().defined());
}

TEST_F(Check, EverySecondStepIsChecked) {
  retape::check_every(2);
  std::vector<bool> checked;
  for (int i = 0; i < 5; ++i) {
    const auto before = retape::check_stats().values_checked;
    UntrackedGuard().loss.backward();
    checked.push_back(retape::check_stats().values_checked > before);
  }
  EXPECT_EQ(checked, (std::vector<bool>{true, false, true, false, true}));
  EXPECT_EQ(retape::check_stats().steps, 5u);
}

TEST_F(Check, AnObserverTellsTheRootThatChangedAndNotWhatCameOfIt) {
  retape::Observer observer;
  UntrackedGuard step;
  step.change();
  step.loss.backward();
  const auto findings = observer.findings();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, "changed unseen");
  EXPECT_EQ(findings[0].op, "aten::mul.Scalar");
  EXPECT_EQ(findings[0].region, "block");
}

TEST_F(Check, AnObserverOfARightStepFindsNothingAndSaysWhatRan) {
  retape::Observer observer;
  UntrackedGuard().loss.backward();
  EXPECT_TRUE(observer.findings().empty());
  EXPECT_GT(observer.values_checked(), 0u);
  EXPECT_EQ(observer.bytes_held(), 0u);
  ASSERT_EQ(observer.regions().size(), 1u);
  EXPECT_EQ(observer.regions()[0].name, "block");
  EXPECT_GT(observer.regions()[0].ops_replayed, 0u);
}

TEST_F(Check, OneObserverAtATime) {
  retape::Observer observer;
  EXPECT_THROW(retape::Observer(), retape::UsageError);
}

TEST_F(Check, ScopesThatWereOpenBeforeAnObserverCameAreNotWatched) {
  UntrackedGuard step;
  retape::Observer observer;
  step.loss.backward();
  EXPECT_EQ(observer.values_checked(), 0u);
  EXPECT_TRUE(observer.regions().empty());
}

// ---- writes

// What replay of a write makes from memory that was changed past the dispatcher.
std::string mismatch_of_write(
    const std::function<at::Tensor(const at::Tensor& made, const at::Tensor& given)>& write) {
  const auto given = torch::ones({4, 8});
  const auto w = torch::full({4, 8}, 0.5).requires_grad_();
  at::Tensor loss;
  {
    retape::Recompute scope(retape::Policy::full().anchors(false));
    loss = (write(w.detach() * 2, given) * w).sin().sum();  // two saved: more than was given
  }
  given.data_ptr<float>()[0] = 7;
  try {
    loss.backward();
  } catch (const retape::ReplayMismatch& error) {
    return error.what();
  }
  return "";
}

TEST_F(Check, AVersionThatAnInPlaceOpMadeIsCompared) {
  retape::check_every(1);
  const auto in_place = mismatch_of_write(
      [](at::Tensor made, const at::Tensor& given) { return made.add_(given); });
  EXPECT_NE(in_place.find("aten::add_.Tensor: what it makes"), std::string::npos) << in_place;
  EXPECT_NE(in_place.find("element 0 was 2 and is now 8"), std::string::npos) << in_place;
  const auto partly = mismatch_of_write([](at::Tensor made, const at::Tensor& given) {
    made.slice(0, 0, 2).mul_(given.slice(0, 0, 2));
    return made;
  });
  EXPECT_NE(partly.find("aten::mul_.Tensor: what it makes (Float [4, 8])"), std::string::npos)
      << partly;
  const auto out = mismatch_of_write(
      [](at::Tensor made, const at::Tensor& given) { return at::neg_out(made, given); });
  EXPECT_NE(out.find("aten::neg.out: what it makes"), std::string::npos) << out;
}

TEST_F(Check, AWriteToACopyOfWhatIsStillNeededIsRight) {
  const auto w = torch::full({4, 8}, 0.5).requires_grad_();
  retape::Observer observer;
  at::Tensor loss;
  {
    retape::Recompute scope(retape::Policy::full().anchors(false));
    auto y = w.detach() * 2;
    loss = (y + w).sin().sum();  // the last to ask for the first version
    y.mul_(3);
    loss = loss + (y * w).sum();
  }
  loss.backward();
  EXPECT_GT(observer.values_checked(), 0u);
  EXPECT_TRUE(observer.findings().empty()) << observer.findings()[0].what;
}

TEST_F(Check, WhatAnOpLeavesUnwrittenIsNotCompared) {
  // In evaluation rrelu does not write its noise, whatever its schema says.
  const auto w = torch::full({4, 8}, -0.5).requires_grad_();
  retape::Observer observer;
  at::Tensor loss;
  {
    retape::Recompute scope(retape::Policy::full().anchors(false));
    auto noise = torch::empty({4, 8});
    std::fill_n(noise.data_ptr<float>(), 32, 0.25f);
    loss = at::rrelu_with_noise(w * 2, noise, 0.1, 0.4, /*training=*/false).sum();
  }
  loss.backward();
  EXPECT_GT(observer.values_checked(), 0u);
  EXPECT_TRUE(observer.findings().empty()) << observer.findings()[0].what;
}

// ---- reads

// Asks twice for what it saved, and in between writes to it past the dispatcher.
struct AsksTwice : torch::autograd::Function<AsksTwice> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& between) {
    ctx->save_for_backward({x});
    ctx->saved_data["between"] = between;
    return x.clone();
  }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext* ctx, torch::autograd::tensor_list grads) {
    const auto between = ctx->saved_data["between"].toTensor();
    const auto saved = ctx->get_saved_variables()[0];
    std::copy_n(between.data_ptr<float>(), saved.numel(), saved.data_ptr<float>());
    ctx->get_saved_variables();
    return {grads[0] * 2, at::Tensor()};
  }
};

TEST_F(Check, AnObserverTellsWhatASecondReadGotInstead) {
  const auto w = torch::full({4, 8}, 0.5).requires_grad_();
  const auto kind = [&](const std::function<at::Tensor(retape::Policy)>& between) {
    retape::Observer observer;
    const auto policy = retape::Policy::full().anchors(false);
    at::Tensor loss;
    {
      const auto bytes = between(policy);
      retape::Recompute scope(policy);
      const auto other = bytes.defined() ? bytes : (w * 5).detach();
      loss = AsksTwice::apply(w * 3, other).sum();
    }
    loss.backward();
    const auto findings = observer.findings();
    return findings.size() == 1 ? findings[0].kind : std::to_string(findings.size()) + " findings";
  };
  EXPECT_EQ(kind([](const auto&) { return torch::full({4, 8}, 100.0); }), "second unpack");
  EXPECT_EQ(kind([](const auto&) { return at::Tensor(); }), "swapped");
  EXPECT_EQ(
      kind([&](const auto& policy) {
        retape::Recompute earlier(policy);
        return (w * 7).detach();
      }),
      "stale");
}

// ---- faults

TEST_F(Check, WithCopiesADifferenceIsCountedInUlps) {
  if (retape::detail::faults().empty()) {
    GTEST_SKIP() << "this build has no faults to inject";
  }
  retape::Observer::Options options;
  options.copies = true;
  retape::Observer observer(options);
  retape::detail::inject("one-ulp");
  UntrackedGuard().loss.backward();
  EXPECT_GT(retape::detail::fault_hits(), 0u);
  retape::detail::inject("");
  ASSERT_FALSE(observer.findings().empty());
  EXPECT_EQ(observer.findings()[0].kind, "one ulp");
  EXPECT_NE(
      observer.findings()[0].what.find("1 of 32 values differ by up to 1 ulp"), std::string::npos)
      << observer.findings()[0].what;
}

TEST_F(Check, AnUnknownFaultIsRefused) {
  EXPECT_THROW(retape::detail::inject("gremlin"), retape::UsageError);
}

}  // namespace
