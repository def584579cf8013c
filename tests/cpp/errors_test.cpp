// Bad input gets a clear error, and nothing is lost.
#include "support.h"

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

TEST(Errors, UnknownPolicyNameListsTheKnownOnes) {
  const auto text = text_of<UsageError>([] { Policy::named("fulll"); });
  expect_has(text, "[Policy::named]");
  expect_has(text, "\"none\", \"full\" or \"cheap\"");
}

TEST(Errors, UnknownOpNameOffersTheNearest) {
  expect_has(text_of<UsageError>([] { Policy::full().keep_ops({"aten::softmaxx"}); }), "did you mean");
  expect_has(text_of<UsageError>([] { Policy::full().drop_ops({"aten::add.Nothing"}); }), "no op is called");
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

TEST(Errors, ScopesAreClosedFromTheInside) {
  Recompute outer(drop_all(), "outer");
  Recompute inner(drop_all(), "inner");
  expect_has(text_of<UsageError>([&] { outer.close(); }), "still open");
  inner.close();
  outer.close();
  expect_has(text_of<UsageError>([&] { outer.close(); }), "closed already");
  EXPECT_FALSE(is_recording());
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
    expect_has(text_of<UsageError>([&] { MemoryMeter meter(options); }), "no caching allocator for cuda:0");
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
