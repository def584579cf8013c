// Lean backward nodes: the same bits from less memory, and stock behaviour wherever somebody looks.
#include "support.h"

namespace retape::testing {

namespace {

// In all tests of this binary, small tensors too.
class SmallOnesToo : public ::testing::Environment {
  void SetUp() override { detail::set_least_lean_bytes(0); }
};
[[maybe_unused]] const auto* environment = ::testing::AddGlobalTestEnvironment(new SmallOnesToo);

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kRows = 512, kWide = 512;  // 1 MiB of floats

Tensor input(uint64_t seed, at::ScalarType dtype = torch::kFloat) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return torch::randn({kRows, kWide}, generator, torch::TensorOptions()).to(dtype).requires_grad_();
}

struct Outcome {
  std::vector<Tensor> gradients;
  int64_t backward_peak;
};

using Step = std::function<Tensor(const std::vector<Tensor>&)>;

// Nothing is dropped: what differs is the nodes.
Outcome run(bool lean, const Step& step, at::ScalarType dtype) {
  const std::vector<Tensor> leaves{input(1, dtype), input(2, dtype), input(3, dtype)};
  Tensor loss;
  MemoryMeter meter;
  {
    Recompute scope(Policy::none().lean(lean));
    loss = step(leaves).neg().sum();
  }
  const auto seed = torch::ones_like(loss);
  meter.reset_peak();
  const auto before = meter.current();
  loss.backward(seed);
  Outcome outcome{{}, meter.peak() - before};
  for (const auto& leaf : leaves) {
    outcome.gradients.push_back(leaf.grad());
  }
  return outcome;
}

// `saves`: bytes at the peak of backward, in float; `within` so many.
void expect_same_bits_from_less(const Step& step, int64_t saves, int64_t within) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    const auto stock = run(false, step, dtype);
    const auto lean = run(true, step, dtype);
    for (size_t i = 0; i < stock.gradients.size(); ++i) {
      EXPECT_TRUE(same_bits(stock.gradients[i], lean.gradients[i])) << dtype << " leaf " << i;
    }
    if (dtype == torch::kFloat) {
      EXPECT_NEAR(stock.backward_peak - lean.backward_peak, saves, within);
    }
  }
}

struct Case {
  const char* name;
  Step step;
  int64_t saves;  // MiB less at the peak of backward, in float
};

class Lean : public ::testing::TestWithParam<Case> {};

TEST_P(Lean, SameBitsFromLessMemory) {
  expect_same_bits_from_less(GetParam().step, GetParam().saves * kMiB, 64);  // numbers
}

// Sums before, so that nothing but the op's own node holds what it has saved; `neg` behind, so that
// its gradient is a tensor of its own.
INSTANTIATE_TEST_SUITE_P(
    Ops,
    Lean,
    ::testing::Values(
        Case{"mm", [](const auto& t) { return (t[0] + 1).mm(t[1]); }, 1},
        Case{"addmm", [](const auto& t) { return torch::addmm(t[2], t[0] + 1, t[1]); }, 1},
        Case{
            "bmm",
            [](const auto& t) {
              return (t[0] + 1).view({2, 256, 512}).bmm(t[1].view({2, 512, 256}));
            },
            1},
        Case{"mul", [](const auto& t) { return (t[0] + 1) * (t[1] + 1); }, 2},
        Case{"mul_broadcast", [](const auto& t) { return (t[0] + 1) * t[1][0]; }, 2},
        Case{"pow", [](const auto& t) { return (t[0] + 1).pow(2); }, 2},
        Case{"silu", [](const auto& t) { return torch::silu(t[0] + 1); }, 1},
        Case{"gelu", [](const auto& t) { return torch::gelu(t[0] + 1); }, 1},
        Case{"gelu_tanh", [](const auto& t) { return torch::gelu(t[0] + 1, "tanh"); }, 1},
        Case{"softmax", [](const auto& t) { return torch::softmax(t[0] + 1, -1); }, 1},
        Case{"softmax_of_columns", [](const auto& t) { return torch::softmax(t[0] + 1, 0); }, 1},
        Case{"log_softmax", [](const auto& t) { return torch::log_softmax(t[0] + 1, -1); }, 1},
        Case{
            "log_softmax_of_columns",
            [](const auto& t) { return torch::log_softmax(t[0] + 1, 0); },
            1}),
    [](const auto& info) { return std::string(info.param.name); });

// Slices of a sixteenth: a layer_norm has one beside the gradient; a batch_norm two copies, and two
// results, of which stock backward makes whole ones.
struct Norm {
  const char* name;
  Step step;
  int64_t saves;  // sixteenths of a MiB
};

Tensor parameter(int64_t size, const Tensor& like) {
  return torch::ones({size}, like.options().requires_grad(true));
}

class LeanNorm : public ::testing::TestWithParam<Norm> {};

TEST_P(LeanNorm, SameBitsFromLessMemory) {
  expect_same_bits_from_less(
      GetParam().step, GetParam().saves * kMiB / 16, kMiB / 64);  // weights' gradients
}

INSTANTIATE_TEST_SUITE_P(
    Ops,
    LeanNorm,
    ::testing::Values(
        Norm{
            "layer_norm",
            [](const auto& t) {
              const auto weight = parameter(kWide, t[0]);
              return torch::layer_norm(t[0] + 1, {kWide}, weight, parameter(kWide, t[0]));
            },
            15},
        Norm{
            "batch_norm",
            [](const auto& t) {
              const auto weight = parameter(64, t[0]);
              const auto planes = (t[0] + 1).view({8, 64, 512});
              return torch::batch_norm(
                  planes, weight, parameter(64, t[0]), {}, {}, true, 0.1, 1e-5, false);
            },
            28}),
    [](const auto& info) { return std::string(info.param.name); });

Tensor silu_of_shared(const Tensor& x, Tensor* inner) {
  *inner = torch::silu(x + 1);
  return inner->sin();
}

TEST(LeanNodes, AGradientThatSomebodyHoldsIsNotWrittenOver) {
  auto x = input(1);
  Recompute scope(Policy::none());
  Tensor inner;
  const auto loss = silu_of_shared(x, &inner).sum();
  scope.close();
  inner.retain_grad();
  loss.backward();
  EXPECT_TRUE(same_bits(inner.grad(), inner.detach().cos()));
}

TEST(LeanNodes, AGradientThatTheCallerGaveIsNotWrittenOver) {
  auto x = input(1);
  Recompute scope(Policy::none());
  const auto y = torch::silu(x + 1);
  scope.close();
  auto given = torch::ones_like(y);
  y.backward(given);
  EXPECT_TRUE(given.eq(1).all().item<bool>());
  std::vector<float> memory(kRows * kWide, 1.0f);
  const auto z = [&] {
    Recompute again(Policy::none());
    return torch::silu(x + 1);
  }();
  z.backward(torch::from_blob(memory.data(), {kRows, kWide}));
  EXPECT_EQ(*std::min_element(memory.begin(), memory.end()), 1.0f);
}

TEST(LeanNodes, AFactorThatSomebodyHoldsIsNotWrittenOver) {
  auto x = input(1);
  auto w = input(2);
  Recompute scope(Policy::none());
  const auto a = x.exp();
  const auto b = w.exp();
  const auto before = b.detach().clone();
  const auto loss = (a * b).sum();
  scope.close();
  loss.backward();
  EXPECT_TRUE(same_bits(b, before));
}

TEST(LeanNodes, AKeptGraphGivesTheSameTwice) {
  auto x = input(1);
  auto w = input(2);
  Recompute scope(drop_all());
  const auto loss = (torch::silu(x.mm(w)) * (x + 1)).mm(w).pow(2).sum();
  scope.close();
  const auto first = torch::autograd::grad({loss}, {x, w}, {}, true);
  const auto second = torch::autograd::grad({loss}, {x, w});
  EXPECT_TRUE(same_bits(first[0], second[0]));
  EXPECT_TRUE(same_bits(first[1], second[1]));
}

TEST(LeanNodes, DoubleBackwardIsTorchsOwn) {
  const auto second = [](bool lean) {
    auto x = input(1, torch::kDouble);
    auto w = input(2, torch::kDouble);
    Recompute scope(drop_all().lean(lean));
    const auto loss = (torch::silu(x.mm(w)) * torch::gelu(x)).softmax(-1).pow(3).sum();
    scope.close();
    const auto first = torch::autograd::grad({loss}, {x, w}, {}, true, true);
    return torch::autograd::grad({first[0].sum() + first[1].square().sum()}, {x, w});
  };
  const auto stock = second(false);
  const auto lean = second(true);
  EXPECT_TRUE(same_bits(stock[0], lean[0]));
  EXPECT_TRUE(same_bits(stock[1], lean[1]));
}

TEST(LeanNodes, OnlyWhatIsAskedForIsComputed) {
  auto x = input(1);
  auto w = input(2);
  const auto gradients = [&](bool lean) {
    Recompute scope(Policy::none().lean(lean));
    const auto loss = (x.mm(w) * x).sum();
    scope.close();
    auto of_w = torch::autograd::grad({loss}, {w}, {}, true);
    auto of_x = torch::autograd::grad({loss}, {x});
    return std::vector<Tensor>{of_w[0], of_x[0]};
  };
  const auto stock = gradients(false);
  const auto lean = gradients(true);
  EXPECT_TRUE(same_bits(stock[0], lean[0]));
  EXPECT_TRUE(same_bits(stock[1], lean[1]));
}

TEST(LeanNodes, ABackwardThatFailsLeavesTheGraphAsItWas) {
  auto x = input(1);
  auto w = input(2);
  Recompute scope(Policy::none());
  const auto h = x.mm(w);
  const auto loss = h.mm(w).sum();
  scope.close();
  bool fail = true;
  h.register_hook([&](const Tensor& grad) {
    TORCH_CHECK(!fail, "not now");
    return grad;
  });
  EXPECT_THROW(loss.backward({}, true), c10::Error);
  fail = false;
  x.mutable_grad() = Tensor();
  w.mutable_grad() = Tensor();
  loss.backward();
  const auto got = w.grad().clone();
  w.mutable_grad() = Tensor();
  x.mm(w).mm(w).sum().backward();
  EXPECT_TRUE(same_bits(got, w.grad()));
}

TEST(LeanNodes, NamesAndEdgesAreTorchs) {
  auto x = input(1);
  auto w = input(2);
  Recompute scope(Policy::none());
  const auto y = x.mm(w);
  EXPECT_EQ(y.grad_fn()->name(), "MmBackward0");
  EXPECT_EQ(y.grad_fn()->num_outputs(), 2u);
  EXPECT_EQ(y.grad_fn()->next_edge(1).function->name(), "torch::autograd::AccumulateGrad");
}

}  // namespace

}  // namespace retape::testing
