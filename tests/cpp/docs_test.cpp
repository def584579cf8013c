// The code of docs/cpp.md, line for line (tests/python/test_cpp_page.py compares), runs and does
// what the page says.
#include "support.h"

#include <retape/testing.h>

#include <iostream>

namespace retape::testing {
namespace {

struct BlockImpl : torch::nn::Module { /* ... */
  at::Tensor forward(at::Tensor x);
};
using Block = retape::Layer<BlockImpl>;  // in place of TORCH_MODULE(Block)

at::Tensor BlockImpl::forward(at::Tensor x) {
  return x.sin().tanh();
}

struct ModelImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
  Block block = register_module("block", Block());

  Tensor forward(const Tensor& batch) { return block->forward(linear(batch)).square().sum(); }
};
TORCH_MODULE(Model);

struct DocsTest : ::testing::Test {
  Model model;
  Tensor batch = leaf({3, 4}, 1), x = leaf({3, 4}, 2), mask = leaf({3, 4}, 3).detach();
  torch::nn::Linear up{4, 8}, down{8, 4};

  // What the code of the page gives, against what `plain` gives.
  void expect_gradient_of_x(const Tensor& result, const Tensor& plain) {
    EXPECT_TRUE(same_bits(result, plain));
    const auto expected = torch::autograd::grad({plain.sum()}, {x})[0];
    EXPECT_TRUE(same_bits(torch::autograd::grad({result.sum()}, {x})[0], expected));
  }
};

TEST_F(DocsTest, Scope) {
  at::Tensor loss;
  {
    retape::Recompute scope(retape::Policy::cheap(), "encoder");
    loss = model->forward(batch);
  }
  loss.backward();  // replays what it needs, bit for bit

  const auto found = batch.grad();
  batch.mutable_grad().reset();
  model->forward(batch).backward();
  EXPECT_TRUE(same_bits(found, batch.grad()));
}

TEST_F(DocsTest, Region) {
  const auto norm = [](const Tensor& t) { return torch::layer_norm(t, {4}); };
  const auto mlp = [&](const Tensor& t) { return down(torch::silu(up(t))); };
  const auto block = [](const Tensor& t, const Tensor& other) { return (t * other).sin(); };

  auto y = retape::checkpoint([&](at::Tensor x) { return mlp(norm(x)); }, x);

  retape::CheckpointOptions options;
  options.name = "block.4";                              // for errors and reports
  auto z = retape::checkpoint(options, block, y, mask);  // any callable, any arguments

  expect_gradient_of_x(z, block(mlp(norm(x)), mask));
}

TEST_F(DocsTest, RegionThatFreesItsOutput) {
  retape::OutputDiscardCheckpoint ckpt("ffn");
  auto h = ckpt.checkpoint([&](at::Tensor t) { return at::silu(up(t)); }, x);
  auto z = down(h);
  ckpt.discard_output_and_register_recompute(z);  // h's memory is free until backward

  EXPECT_THROW(h.const_data_ptr(), c10::Error);
  expect_gradient_of_x(z, down(at::silu(up(x))));
}

TEST_F(DocsTest, Policies) {
  auto policy = retape::Policy::full().keep_ops({"aten::mm", "aten::addmm"});
  auto own = retape::Policy::function([](const retape::ValueInfo& value) {
    return value.cheap ? retape::Decision::Drop : retape::Decision::Keep;
  });

  for (const auto& each : {policy, own}) {
    retape::Recompute scope(each);
    const auto loss = model->forward(batch);
    scope.close();
    loss.backward();
    EXPECT_GT(scope.stats().ops_replayed, 0u);
  }
  EXPECT_THROW(retape::Policy::full().keep_ops({"aten::linear"}), retape::UsageError);
  EXPECT_NO_THROW(retape::Policy::full().keep_ops({"aten::add.Tensor"}));
}

TEST_F(DocsTest, Meter) {
  Tensor loss;
  ::testing::internal::CaptureStdout();

  retape::MemoryMeter meter;
  loss = model->forward(batch);
  loss.backward();
  std::cout << meter.peak() << " bytes at most, " << meter.held() << " when backward began\n";

  EXPECT_EQ(
      ::testing::internal::GetCapturedStdout(),
      std::to_string(meter.peak()) + " bytes at most, " + std::to_string(meter.held()) +
          " when backward began\n");
  EXPECT_GE(meter.peak(), meter.held());
  EXPECT_GT(meter.held(), 0);
}

TEST_F(DocsTest, Layers) {
  retape::enable(*model);  // every Layer in it: forward is a checkpoint
  model->forward(batch).backward();
  retape::disable(*model);

  EXPECT_EQ(model->block->calls(), 1u);
  const auto found = batch.grad();
  batch.mutable_grad().reset();
  model->forward(batch).backward();
  EXPECT_EQ(model->block->calls(), 1u);
  EXPECT_TRUE(same_bits(found, batch.grad()));
}

TEST_F(DocsTest, Verify) {
  const auto loss_of = [](Model model, const Tensor& batch) { return model->forward(batch); };

  // Plain against recomputed.
  auto verdict = retape::verify(*model, [&] { return loss_of(model, batch); });
  if (!verdict)
    throw retape::Error(verdict.explain());
  EXPECT_SAME_GRADIENTS(
      *model, [&] { return loss_of(model, batch); });  // fails where it is vacuous, too

  EXPECT_GT(verdict.ops_replayed, 0u);
}

TEST_F(DocsTest, RunningAFunctionAgain) {
  int calls = 0;
  const auto function = [&calls](const Tensor& t, const Tensor& other) {
    ++calls;
    return (t * other).sin();
  };

  retape::CheckpointOptions options;
  options.method = retape::Method::Rerun;  // for kernels that the dispatcher does not see
  auto y = retape::checkpoint(options, function, x, mask);

  expect_gradient_of_x(y, function(x, mask));
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace retape::testing
