// check_every and Observer: is what replay makes what forward made?
#include <retape/retape.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>

namespace {

// A loss whose backward replays from memory that is changed past the dispatcher after forward.
struct Unseen {
  at::Tensor x = torch::ones({4, 8});
  at::Tensor w = torch::full({4, 8}, 0.5).requires_grad_();
  at::Tensor loss;

  Unseen() {
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
  Unseen step;
  step.change();
  EXPECT_NO_THROW(step.loss.backward());
}

TEST_F(Check, CheckedItRaisesAndNamesOpRegionAndValues) {
  retape::check_every(1);
  Unseen step;
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
    Unseen().loss.backward();
    checked.push_back(retape::check_stats().values_checked > before);
  }
  EXPECT_EQ(checked, (std::vector<bool>{true, false, true, false, true}));
  EXPECT_EQ(retape::check_stats().steps, 5u);
}

TEST_F(Check, AnObserverTellsTheRootThatChangedAndNotWhatCameOfIt) {
  retape::Observer observer;
  Unseen step;
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
  Unseen().loss.backward();
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
  Unseen step;
  retape::Observer observer;
  step.loss.backward();
  EXPECT_EQ(observer.values_checked(), 0u);
  EXPECT_TRUE(observer.regions().empty());
}

TEST_F(Check, WithCopiesADifferenceIsCountedInUlps) {
  if (retape::detail::faults().empty()) {
    GTEST_SKIP() << "this build has no faults to inject";
  }
  retape::Observer::Options options;
  options.copies = true;
  retape::Observer observer(options);
  retape::detail::inject("one-ulp");
  Unseen().loss.backward();
  EXPECT_GT(retape::detail::fault_hits(), 0u);
  retape::detail::inject("");
  ASSERT_FALSE(observer.findings().empty());
  EXPECT_EQ(observer.findings()[0].kind, "one ulp");
  EXPECT_NE(observer.findings()[0].what.find("1 of 32 values differ by up to 1 ulp"), std::string::npos)
      << observer.findings()[0].what;
}

TEST_F(Check, AnUnknownFaultIsRefused) {
  EXPECT_THROW(retape::detail::inject("gremlin"), retape::UsageError);
}

}  // namespace
