#include "support.h"

namespace retape::testing {
namespace {

struct Pair {
  Tensor first;
  int second;
};

TEST(Checkpoint, AnyCallableAnyArgumentsAnyResult) {
  const auto scaled = [](Tensor t, double s) { return (t * s).sin(); };
  const auto both = [](const Tensor& t) {
    auto a = t.exp().sin();
    auto b = t.cos().exp();
    return std::make_tuple(a, b);
  };
  const auto listed = [](const std::vector<Tensor>& ts) { return Pair{ts[0].sigmoid().exp(), 3}; };

  const auto x = leaf({4, 4});
  const auto a = checkpoint(scaled, x, 2.0);
  const auto [b, c] = checkpoint(both, x);
  const auto d = checkpoint(listed, std::vector<Tensor>{x});
  (a.sum() + b.sum() + c.sum() + d.first.sum() * d.second).backward();

  const auto y = leaf({4, 4});
  const auto e = scaled(y, 2.0);
  const auto [f, g] = both(y);
  const auto h = listed({y});
  (e.sum() + f.sum() + g.sum() + h.first.sum() * h.second).backward();
  EXPECT_TRUE(same_bits(x.grad(), y.grad()));
}

struct WithReference {
  Tensor& cache;
  int position;
};

struct Base {
  Tensor hidden;
};
struct Derived : Base {
  Tensor shown;
};
template <typename Visit>
void visit_tensors(Derived& value, Visit&& visit) {
  visit(value.hidden);
  visit(value.shown);
}

TEST(Checkpoint, StructsThatCannotBeTakenApartAreArgumentsToo) {
  const auto x = leaf({4}), y = leaf({4}, 2);
  auto cache = torch::ones({4});
  const auto a = checkpoint(
      [](WithReference r, const Tensor& t) { return (t * r.cache).sin() * r.position; },
      WithReference{cache, 2},
      x);
  CheckpointOptions options;
  options.method = Method::Rerun;
  options.use_reentrant = true;
  const auto b = checkpoint(
      options, [](const Derived& d) { return d.hidden.sin() * d.shown.exp(); }, Derived{{x}, y});
  (a.sum() + b.sum()).backward();
  const auto u = leaf({4}), v = leaf({4}, 2);
  (((u * cache).sin() * 2).sum() + (u.sin() * v.exp()).sum()).backward();
  EXPECT_TRUE(torch::allclose(u.grad(), x.grad()));
  EXPECT_TRUE(same_bits(v.grad(), y.grad()));
}

TEST(Checkpoint, CallsTheFunctionOnce) {
  const auto x = leaf({4});
  int calls = 0;
  const auto y = checkpoint([&](const Tensor& t) { return ++calls, t.sin().exp().sin(); }, x);
  y.sum().backward();
  EXPECT_EQ(calls, 1);
}

TEST(Checkpoint, IsAPlainCallWithoutGradients) {
  torch::NoGradGuard guard;
  const auto x = leaf({4});
  bool recording = true;
  checkpoint([&] {
    recording = is_recording();
    return x.sin();
  });
  EXPECT_FALSE(recording);
}

TEST(Checkpoint, HoldsItsInputsOnly) {
  const auto w1 = leaf({128, 512}, 1), w3 = leaf({128, 512}, 2), w2 = leaf({512, 128}, 3);
  MemoryMeter meter;
  auto x = leaf({256, 128});
  const auto bytes = meter.current();
  CheckpointOptions options;
  options.name = "swiglu";
  for (int i = 0; i < 8; ++i) {
    x = checkpoint(
        options, [&](const Tensor& t) { return (torch::silu(t.mm(w1)) * t.mm(w3)).mm(w2); }, x);
  }
  EXPECT_EQ(meter.current(), 9 * bytes);
}

TEST(Checkpoint, RegionsInsideAScopeHoldTheirInputsAsItsPolicySays) {
  const auto w1 = leaf({128, 512}, 1), w2 = leaf({512, 128}, 3);
  const auto layer = [&](const Tensor& t) { return torch::gelu(t.mm(w1)).mm(w2); };
  const auto step = [&](std::optional<Policy> around) {
    const auto x = leaf({256, 128});
    MemoryMeter meter;
    std::optional<Recompute> scope;
    if (around) {
      scope.emplace(*around);
    }
    Tensor y = x;
    for (int i = 0; i < 16; ++i) {
      y = checkpoint(layer, y);
    }
    auto loss = y.sum();
    y = Tensor();
    scope.reset();
    const auto held = meter.current();
    loss.backward();
    return std::make_tuple(held, meter.peak(), x.grad());
  };
  const auto [held, peak, grad] = step({});
  for (const auto& around : {Policy::none(), Policy::cheap(), Policy::full(), drop_all()}) {
    SCOPED_TRACE(around.describe());
    const auto [held_inside, peak_inside, grad_inside] = step(around);
    EXPECT_TRUE(same_bits(grad, grad_inside));
    EXPECT_LE(held_inside, held);
    if (around.describe() != drop_all().describe()) {  // which asks for one region of all
      EXPECT_LE(peak_inside, peak);
    }
  }
}

}  // namespace
}  // namespace retape::testing
