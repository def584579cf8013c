#include "support.h"

#include <thread>

namespace retape::testing {
namespace {

struct Weights {
  Tensor up, gate, down, bias;
};

Weights weights(torch::Dtype dtype) {
  const auto options = torch::dtype(dtype);
  torch::manual_seed(1);
  return {
      torch::randn({24, 8}, options).set_requires_grad(true),
      torch::randn({24, 8}, options).set_requires_grad(true),
      torch::randn({8, 24}, options).set_requires_grad(true),
      torch::randn({8}, options).set_requires_grad(true)};
}

Tensor swiglu(const Weights& w, const Tensor& x) {
  return torch::nn::functional::linear(
      torch::silu(at::linear(x, w.up)) * at::linear(x, w.gate), w.down, w.bias);
}

std::vector<Tensor> gradients(const Tensor& y, const Weights& w, const Tensor& x) {
  torch::manual_seed(2);
  return torch::autograd::grad({y}, {x, w.up, w.gate, w.down, w.bias}, {torch::randn_like(y)});
}

CheckpointOptions in_rows(const Rows& rows) {
  CheckpointOptions options;
  options.name = "block";
  options.rows = rows;
  return options;
}

void expect_close(
    const std::vector<Tensor>& found, const std::vector<Tensor>& plain, double bound) {
  ASSERT_EQ(found.size(), plain.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    const double scale = plain[i].abs().max().item<double>();
    EXPECT_GT(scale, 0);
    EXPECT_LE((found[i] - plain[i]).abs().max().item<double>(), bound * scale) << "gradient " << i;
  }
}

TEST(Rows, GradientsAreEqualToRoundingInAnyNumberOfSlices) {
  const auto w = weights(torch::kDouble);
  const auto x = torch::randn({3, 5, 8}, torch::kDouble).set_requires_grad(true);
  const auto plain = gradients(swiglu(w, x), w, x);
  for (const int slices : {1, 2, 4, 7, 15, 100}) {
    const Rows rows(slices, /*strict=*/true);
    const auto y = checkpoint(in_rows(rows), [&](const Tensor& t) { return swiglu(w, t); }, x);
    EXPECT_TRUE(same_bits(y, swiglu(w, x)));
    expect_close(gradients(y, w, x), plain, 1e-12);
    EXPECT_EQ(rows.stats().sliced, 1u);
    EXPECT_GT(rows.stats().ops_replayed, 0u);
  }
}

TEST(Rows, CallsTheFunctionOnceAndHoldsNothingOfItsInside) {
  const auto w = weights(torch::kDouble);
  const auto x = torch::randn({64, 8}, torch::kDouble).set_requires_grad(true);
  int calls = 0;
  MemoryMeter meter;
  const auto y = checkpoint(
      in_rows(Rows(4)), [&](const Tensor& t) { return ++calls, swiglu(w, t); }, x);
  EXPECT_EQ(meter.current(), static_cast<int64_t>(y.nbytes()));
  y.sum().backward();
  EXPECT_EQ(calls, 1);
}

TEST(Rows, TakesAnyResultThatHoldsTensors) {
  const auto x = torch::randn({6, 8}, torch::kDouble).set_requires_grad(true);
  const auto both = [](const std::vector<Tensor>& t) {
    return std::make_tuple(t[0].sin(), 3, t[0].exp());
  };
  const auto [a, n, b] = checkpoint(in_rows(Rows(4, true)), both, std::vector<Tensor>{x});
  EXPECT_EQ(n, 3);
  const auto found = torch::autograd::grad({(a * b).sum()}, {x});
  expect_close(found, torch::autograd::grad({(x.sin() * x.exp()).sum()}, {x}), 1e-12);
}

TEST(Rows, WhereRowsAreMixedTheCallIsReplayedWholeAndSaysWhy) {
  const auto mixed = [](const Tensor& t) { return t.sin().cumsum(0).exp(); };
  const auto x = torch::randn({6, 8}).set_requires_grad(true);
  const Rows rows(2);
  const auto y = checkpoint(in_rows(rows), mixed, x);
  EXPECT_EQ(rows.stats().whole, 1u);
  EXPECT_EQ(rows.stats().sliced, 0u);
  EXPECT_EQ(rows.stats().reason, "aten::cumsum works along dimension 0, and rows are there");
  EXPECT_TRUE(same_bits(
      torch::autograd::grad({y.sum()}, {x})[0], torch::autograd::grad({mixed(x).sum()}, {x})[0]));
  EXPECT_THROW(checkpoint(in_rows(Rows(2, /*strict=*/true)), mixed, x), UsageError);
  EXPECT_FALSE(is_recording());
}

TEST(Rows, AWeightThatStepsBeforeBackwardRaisesAsInEager) {
  const auto w = weights(torch::kFloat);
  const auto x = torch::randn({6, 8}).set_requires_grad(true);
  const auto y = checkpoint(in_rows(Rows(2)), [&](const Tensor& t) { return swiglu(w, t); }, x);
  {
    torch::NoGradGuard guard;
    w.gate.mul_(2);
  }
  EXPECT_THROW(gradients(y, w, x), c10::Error);
}

TEST(Rows, RetainedGraphsGiveTheSameBitsAgain) {
  const auto w = weights(torch::kFloat);
  const auto x = torch::randn({6, 8}).set_requires_grad(true);
  const auto y = checkpoint(in_rows(Rows(2)), [&](const Tensor& t) { return swiglu(w, t); }, x);
  const auto first = torch::autograd::grad({y.sum()}, {x, w.up}, {}, /*retain_graph=*/true);
  const auto again = torch::autograd::grad({y.sum()}, {x, w.up});
  EXPECT_TRUE(same_bits(first[0], again[0]));
  EXPECT_TRUE(same_bits(first[1], again[1]));
}

TEST(Rows, RefusesAGraphOfItsBackward) {
  const auto x = torch::randn({6, 8}).set_requires_grad(true);
  const auto y = checkpoint(in_rows(Rows(2)), [](const Tensor& t) { return t.sin().exp(); }, x);
  EXPECT_THROW(torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true), UsageError);
}

TEST(Rows, WrongCallsRaise) {
  EXPECT_THROW(Rows(0), UsageError);
  auto options = in_rows(Rows(2));
  options.method = Method::Rerun;
  const auto x = torch::randn({6, 8}).set_requires_grad(true);
  EXPECT_THROW(checkpoint(options, [](Tensor t) { return t.sin(); }, x), UsageError);
  EXPECT_THROW(checkpoint(in_rows(Rows(2)), [](const Tensor&) {}, x), UsageError);
}

TEST(Rows, BackwardsOnSeveralThreadsAtOnce) {
  const auto w = weights(torch::kDouble);
  const auto x = torch::randn({6, 8}, torch::kDouble).set_requires_grad(true);
  const auto y = checkpoint(in_rows(Rows(3)), [&](const Tensor& t) { return swiglu(w, t); }, x);
  const auto seed = torch::ones_like(y);
  const auto expected = torch::autograd::grad({y}, {x, w.up}, {seed}, /*retain_graph=*/true);
  std::vector<std::vector<Tensor>> found(4);
  std::vector<std::thread> threads;
  for (auto& each : found) {
    threads.emplace_back([&] { each = torch::autograd::grad({y}, {x, w.up}, {seed}, true); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  for (const auto& each : found) {
    expect_close(each, expected, 1e-12);
  }
}

}  // namespace
}  // namespace retape::testing
