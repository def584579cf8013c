#include "support.h"

#include <thread>

namespace retape::testing {
namespace {

struct SquareImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return x.square().sin(); }
};

Tensor gradient_of(const Tensor& y, const Tensor& x) {
  x.mutable_grad().reset();
  y.sum().backward();
  return x.grad();
}

CheckpointOptions rerun(bool reentrant = false) {
  CheckpointOptions options;
  options.method = Method::Rerun;
  options.use_reentrant = reentrant;
  return options;
}

TEST(Eager, IsThereAsLongAsTheOutermostLives) {
  EXPECT_FALSE(is_eager());
  {
    Eager outer;
    {
      Eager inner;
      EXPECT_TRUE(is_eager());
    }
    EXPECT_TRUE(is_eager());
  }
  EXPECT_FALSE(is_eager());
}

TEST(Eager, IsOfItsThreadAlone) {
  Eager eager;
  bool elsewhere = true;
  std::thread([&] { elsewhere = is_eager(); }).join();
  EXPECT_FALSE(elsewhere);
}

TEST(Eager, AScopeRecordsNothingAndClosesOnce) {
  const auto x = leaf({4});
  Eager eager;
  Recompute scope(drop_all());
  EXPECT_FALSE(is_recording());
  const auto y = x.sin().cos();
  scope.close();
  EXPECT_THROW(scope.close(), UsageError);
  EXPECT_TRUE(gradient_of(y, x).defined());
  const auto stats = scope.stats();
  EXPECT_EQ(
      stats.ops_recorded + stats.values_saved + stats.values_dropped + stats.ops_replayed, 0u);
}

TEST(Eager, AScopeThatIsNotClosedEndsQuietly) {
  const auto x = leaf({4});
  {
    Eager eager;
    Recompute scope;
  }
  Recompute scope(drop_all());
  const auto y = x.sin().cos();
  scope.close();
  gradient_of(y, x);
  EXPECT_GT(scope.stats().ops_replayed, 0u);
}

TEST(Eager, AScopeThatWasOpenGoesOnRecording) {
  const auto x = leaf({4});
  Recompute scope(drop_all());
  Tensor y;
  {
    Eager eager;
    EXPECT_TRUE(is_recording());
    Recompute inner;
    y = x.sin().cos();
  }
  scope.close();
  gradient_of(y, x);
  EXPECT_GT(scope.stats().ops_replayed, 0u);
}

TEST(Eager, ACheckpointedFunctionRunsOnce) {
  const auto x = leaf({4});
  for (const bool reentrant : {false, true}) {
    int runs = 0;
    const auto f = [&](const Tensor& v) { return ++runs, v.square().sin(); };
    Tensor y;
    {
      Eager eager;
      y = checkpoint(rerun(reentrant), f, x);
    }
    gradient_of(y, x);
    EXPECT_EQ(runs, 1);
  }
}

TEST(Eager, ALanguagesOwnRerunsArePlainToo) {
  const auto x = leaf({4});
  int runs = 0;
  const auto body = [&](const detail::Tensors& in) {
    return ++runs, detail::Tensors{in[0].square().sin()};
  };
  Tensor y, z;
  {
    Eager eager;
    detail::RerunScope scope({}, {x}, [&](const detail::Tensors& in) { body(in); });
    y = body({x})[0];
    z = detail::reentrant({}, {x}, body)[0];
  }
  gradient_of(y, x);
  gradient_of(z, x);
  EXPECT_EQ(runs, 2);
}

TEST(Eager, AnEnabledLayerIsCalledPlainly) {
  Layer<SquareImpl> layer;
  enable(*layer);
  const auto x = leaf({4});
  {
    Eager eager;
    layer->forward(x);
  }
  EXPECT_EQ(layer->calls(), 0u);
  layer->forward(x);
  EXPECT_EQ(layer->calls(), 1u);
}

TEST(Eager, NoOutputIsDiscarded) {
  const auto x = leaf({4});
  OutputDiscardCheckpoint ckpt;
  Eager eager;
  const auto h = ckpt.checkpoint([](const Tensor& v) { return v.square(); }, x);
  const auto z = h.sin();
  EXPECT_EQ(ckpt.discard_output_and_register_recompute(z), 0u);
  EXPECT_GT(h.storage().nbytes(), 0u);
  EXPECT_TRUE(gradient_of(z, x).defined());
}

TEST(Eager, WhatWasRecordedBeforeIsReplayed) {
  const auto x = leaf({4});
  const auto plain = gradient_of(x.square().sin(), x);
  const auto recorded = checkpoint([](const Tensor& v) { return v.square().sin(); }, x);
  Eager eager;
  EXPECT_TRUE(same_bits(plain, gradient_of(recorded, x)));
}

TEST(Eager, AFunctionThatRunsAgainDoesAsItDidBefore) {
  const auto x = leaf({4});
  const auto inner = [](const Tensor& v) { return v.square().sin(); };
  const auto outer = [&](const Tensor& v) { return checkpoint(rerun(), inner, v.exp()).cos(); };
  const auto plain = gradient_of(outer(x), x);
  for (const bool reentrant : {false, true}) {
    const auto y = checkpoint(rerun(reentrant), outer, x);
    Eager eager;
    EXPECT_TRUE(same_bits(plain, gradient_of(y, x)));
    EXPECT_TRUE(is_eager());
  }
}

}  // namespace
}  // namespace retape::testing
