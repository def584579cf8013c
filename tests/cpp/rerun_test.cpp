// checkpoint by running the function again.
#include "support.h"

#include <retape/rerun.h>

#include <ATen/autocast_mode.h>

#include <future>
#include <memory>
#include <thread>

namespace retape::testing {
namespace {

CheckpointOptions rerun(bool reentrant = false) {
  CheckpointOptions options;
  options.method = Method::Rerun;
  options.use_reentrant = reentrant;
  options.name = "here";
  return options;
}

// Gradient of x through `step`, plain and under both ways of running again.
using Body = std::function<Tensor(const Tensor&)>;

Tensor gradient(const Body& body, const CheckpointOptions* options, const Tensor& at) {
  torch::manual_seed(5);
  const auto x = at.detach().clone().set_requires_grad(true);
  const auto given = x * 1.5;
  const auto y = options == nullptr ? body(given) : checkpoint(*options, body, given);
  y.square().sum().backward();
  return x.grad();
}

void expect_same(const Body& body) {
  const auto x = leaf({8, 8});
  const auto plain = gradient(body, nullptr, x);
  ASSERT_GT(plain.abs().sum().item<double>(), 0);
  for (const bool reentrant : {false, true}) {
    SCOPED_TRACE(reentrant ? "reentrant" : "not reentrant");
    const auto options = rerun(reentrant);
    EXPECT_TRUE(same_bits(plain, gradient(body, &options, x)));
  }
}

TEST(Rerun, CallsTheFunctionTwice) {
  for (const bool reentrant : {false, true}) {
    int calls = 0;
    const auto x = leaf({4});
    const auto y = checkpoint(
        rerun(reentrant), [&](const Tensor& t) { return ++calls, t.sin().exp().sin(); }, x);
    EXPECT_EQ(calls, 1);
    y.sum().backward();
    EXPECT_EQ(calls, 2);
  }
}

TEST(Rerun, GivesTheGradientsOfThePlainCall) {
  const auto w = leaf({8, 8}, 3);
  expect_same([&](const Tensor& t) { return torch::gelu(t.mm(w)).mm(w); });
}

TEST(Rerun, DrawsTheNumbersThatForwardDrew) {
  const auto drawn = [](at::Generator generator) {
    return [generator](const Tensor& t) {
      return torch::dropout(t.sin(), 0.5, true) * torch::rand(t.sizes(), generator) * t.exp();
    };
  };
  const auto private_one = [] { return at::make_generator<at::CPUGeneratorImpl>(9); };
  const auto x = leaf({8, 8});
  const auto plain = gradient(drawn(private_one()), nullptr, x);
  for (const bool reentrant : {false, true}) {
    const auto options = rerun(reentrant);
    const auto generator = private_one();
    EXPECT_TRUE(same_bits(plain, gradient(drawn(generator), &options, x)));
  }
}

TEST(Rerun, LeavesGeneratorsWhereForwardLeftThem) {
  for (const bool reentrant : {false, true}) {
    const auto x = leaf({8});
    const auto y = checkpoint(
        rerun(reentrant),
        [](const Tensor& t) { return torch::dropout(t.sin(), 0.5, true).exp(); },
        x);
    const auto before = at::detail::getDefaultCPUGenerator().get_state();
    y.sum().backward();
    EXPECT_TRUE(same_bits(before, at::detail::getDefaultCPUGenerator().get_state()));
  }
}

TEST(Rerun, RreluIsRightUnderEarlyStop) {
  expect_same([](const Tensor& t) { return torch::rrelu(t, 0.1, 0.4, /*training=*/true); });
}

TEST(Rerun, BatchNormStatisticsMoveOnce) {
  for (const bool reentrant : {false, true}) {
    torch::nn::BatchNorm1d norm(8), plain(8);
    const auto x = leaf({16, 8}), same = leaf({16, 8});
    checkpoint(
        rerun(reentrant), [&](const Tensor& t) { return norm(t.sin()).exp(); }, x)
        .sum()
        .backward();
    plain(same.sin()).exp().sum().backward();
    EXPECT_TRUE(same_bits(plain->running_mean, norm->running_mean));
    EXPECT_TRUE(same_bits(plain->running_var, norm->running_var));
    EXPECT_TRUE(same_bits(plain->num_batches_tracked, norm->num_batches_tracked));
    EXPECT_TRUE(same_bits(same.grad(), x.grad()));
  }
}

TEST(Rerun, ABufferThatIsReadAndUpdatedIsReadAsForwardReadIt) {
  for (const bool reentrant : {false, true}) {  // as power iterations of spectral norm do
    const auto u = torch::ones({8}), plain_u = torch::ones({8});
    const auto x = leaf({8, 8}), same = leaf({8, 8});
    const auto body = [](const Tensor& t, Tensor u) {
      {
        torch::NoGradGuard guard;
        u.copy_(t.detach().mv(u).tanh());
      }
      return (t * u.clone()).sin();
    };
    const auto y = checkpoint(rerun(reentrant), [&](const Tensor& t) { return body(t * 2, u); }, x);
    body(same * 2, plain_u).sum().backward();
    y.sum().backward();
    EXPECT_TRUE(same_bits(same.grad(), x.grad()));
    EXPECT_TRUE(same_bits(plain_u, u));
  }
}

TEST(Rerun, SettingsAreThoseOfForward) {
  for (const bool reentrant : {false, true}) {
    std::vector<bool> autocast, deterministic, math;
    std::vector<c10::ScalarType> dtypes;
    auto& context = at::globalContext();
    const auto body = [&](const Tensor& t) {
      autocast.push_back(at::autocast::is_autocast_enabled(at::kCPU));
      deterministic.push_back(context.deterministicAlgorithms());
      math.push_back(context.userEnabledMathSDP());
      dtypes.push_back(c10::get_default_dtype_as_scalartype());
      return t.sin().exp();
    };
    const auto x = leaf({4});
    at::autocast::set_autocast_enabled(at::kCPU, true);
    context.setDeterministicAlgorithms(true, false);
    context.setSDPUseMath(false);
    c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
    const auto y = checkpoint(rerun(reentrant), body, x);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    context.setDeterministicAlgorithms(false, false);
    context.setSDPUseMath(true);
    c10::set_default_dtype(caffe2::TypeMeta::Make<float>());
    y.sum().backward();
    EXPECT_EQ(autocast, (std::vector<bool>{true, true}));
    EXPECT_EQ(deterministic, (std::vector<bool>{true, true}));
    EXPECT_EQ(math, (std::vector<bool>{false, false}));
    EXPECT_EQ(dtypes, (std::vector<c10::ScalarType>{c10::kDouble, c10::kDouble}));
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    EXPECT_FALSE(context.deterministicAlgorithms());
    EXPECT_TRUE(context.userEnabledMathSDP());
    EXPECT_EQ(c10::get_default_dtype_as_scalartype(), c10::kFloat);
  }
}

TEST(Rerun, AnotherResultIsAMismatchThatNamesOpAndValues) {
  int calls = 0;
  const auto x = leaf({4});
  const auto y = checkpoint(rerun(), [&](const Tensor& t) { return (t.sin() * ++calls).exp(); }, x);
  try {
    y.sum().backward();
    FAIL() << "the second run differs";
  } catch (const ReplayMismatch& error) {
    const std::string text = error.what();
    for (const auto* part :
         {"region \"here\"", "aten::exp", "Float [4]", "was", "is now", "Fix:"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
    }
  }
  EXPECT_FALSE(x.grad().defined());
}

TEST(Rerun, WithoutTheCheckAnotherResultIsBelieved) {
  int calls = 0;
  const auto x = leaf({4});
  auto options = rerun();
  options.check_determinism = false;
  const auto y = checkpoint(options, [&](const Tensor& t) { return (t.sin() * ++calls).exp(); }, x);
  y.sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(Rerun, FewerOrMoreSavedTensorsAreAMismatch) {
  for (const bool more : {false, true}) {
    int calls = 0;
    const auto x = leaf({4});
    auto options = rerun();
    options.early_stop = false;
    const auto y = checkpoint(
        options,
        [&](const Tensor& t) {
          const auto once = t.sin().exp();
          return (++calls == 1) == more ? once : once.sin();
        },
        x);
    EXPECT_THROW(y.sum().backward(), ReplayMismatch);
  }
}

TEST(Rerun, EarlyStopEndsAfterTheLastOpThatSaved) {
  for (const bool early : {true, false}) {
    int tails = 0;
    const auto x = leaf({4});
    auto options = rerun();
    options.early_stop = early;
    const auto y = checkpoint(
        options,
        [&](const Tensor& t) {
          auto u = t.sin().exp();
          u = u + 1;  // saves nothing
          ++tails;
          return u;
        },
        x);
    y.sum().backward();
    EXPECT_EQ(tails, early ? 1 : 2);
  }
}

TEST(Rerun, ChangedParameterRaisesAsPlainAutogradDoes) {
  const auto w = leaf({4}), x = leaf({4}, 2);
  const auto y = checkpoint(rerun(), [&](const Tensor& t) { return (t * w).sin(); }, x);
  {
    torch::NoGradGuard guard;
    w.add_(1);
  }
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

TEST(Rerun, TwiceWithRetainAndDoubleBackward) {
  const auto body = [](const Tensor& t) { return (t.sin() * t.exp()).tanh(); };
  const auto x = leaf({4}), same = leaf({4});
  const auto y = checkpoint(rerun(), body, x), z = body(same);
  for (const auto& [out, in] : {std::pair{y, x}, std::pair{z, same}}) {
    out.sum().backward({}, /*retain_graph=*/true);
    out.sum().backward({}, /*retain_graph=*/true);
    const auto slope = torch::autograd::grad({out.sum()}, {in}, {}, true, /*create_graph=*/true)[0];
    slope.square().sum().backward();
  }
  EXPECT_TRUE(same_bits(same.grad(), x.grad()));
}

TEST(Rerun, NestsInItselfAndInReplay) {
  const auto inner = [](const Tensor& t) { return (t.sin() * t.exp()).tanh(); };
  const auto outer = [&](const Tensor& t) {
    return checkpoint(rerun(), inner, checkpoint(rerun(), inner, t * 2) + 1);
  };
  const auto same = leaf({4});
  inner(inner(same * 2) + 1).sum().backward();
  for (const auto method : {Method::Rerun, Method::Replay}) {
    CheckpointOptions options;
    options.method = method;
    const auto x = leaf({4});
    checkpoint(options, outer, x).sum().backward();
    EXPECT_TRUE(same_bits(same.grad(), x.grad()));
  }
}

TEST(Rerun, NestedInputsAreNotHeld) {
  const auto body = [](const Tensor& t) { return t.sin().exp(); };
  const auto x = leaf({1024, 1024});
  MemoryMeter meter;
  const auto y = checkpoint(
      rerun(),
      [&](const Tensor& t) { return checkpoint(rerun(), body, checkpoint(rerun(), body, t * 2)); },
      x);
  EXPECT_EQ(meter.current(), 4 << 20);  // y
}

TEST(Rerun, MasksAreNotHeld) {
  const auto x = leaf({1024, 1024});
  MemoryMeter meter;
  const auto y = checkpoint(
      rerun(),
      [](const Tensor& t) { return t.masked_fill(t.detach() > 0, 0.5).exp() * t.detach().sin(); },
      x);
  EXPECT_EQ(meter.current(), 4 << 20);  // y
}

struct Out {
  Tensor main;
  std::vector<Tensor> list;
  int number = 0;
  std::optional<Tensor> maybe;
};

TEST(Rerun, TensorsInsideContainersAndStructsGetGradients) {
  const auto body = [](const std::map<std::string, Tensor>& in, const std::vector<Tensor>& more) {
    return Out{in.at("a") * more[0].sin(), {more[1].exp()}, 7, in.at("a").cos()};
  };
  const auto loss = [](const Out& out) {
    return out.main.sum() + out.list[0].sum() * out.number + out.maybe->sum();
  };
  const auto a = leaf({4}, 1), b = leaf({4}, 2), c = leaf({4}, 3);
  loss(body({{"a", a}}, {b, c})).backward();
  for (const bool reentrant : {false, true}) {
    const auto d = leaf({4}, 1), e = leaf({4}, 2), f = leaf({4}, 3);
    const auto out = checkpoint(
        rerun(reentrant), body, std::map<std::string, Tensor>{{"a", d}}, std::vector<Tensor>{e, f});
    loss(out).backward();
    EXPECT_TRUE(same_bits(a.grad(), d.grad()));
    EXPECT_TRUE(same_bits(b.grad(), e.grad()));
    EXPECT_TRUE(same_bits(c.grad(), f.grad()));
  }
}

TEST(Rerun, ReentrantReachesParametersWhenNoInputWantsAGradient) {
  const auto w = leaf({4}), same = leaf({4});
  const auto x = torch::ones({4});
  checkpoint(rerun(true), [&](const Tensor& t) { return (t * w).sin(); }, x).sum().backward();
  (x * same).sin().sum().backward();
  EXPECT_TRUE(same_bits(same.grad(), w.grad()));
}

TEST(Rerun, ReentrantRefusesAutogradGrad) {
  const auto x = leaf({4});
  const auto y = checkpoint(rerun(true), [](const Tensor& t) { return t.sin().exp(); }, x);
  EXPECT_THROW(torch::autograd::grad({y.sum()}, {x}), UsageError);
}

TEST(Rerun, GraphThatDiesLeavesNothing) {
  const auto x = leaf({1024});
  MemoryMeter meter;
  for (const bool backward : {false, true}) {
    auto y = checkpoint(rerun(), [](const Tensor& t) { return t.sin().exp().sum(); }, x);
    if (backward) {
      y.backward();
      x.mutable_grad() = Tensor();
    }
    y = Tensor();
    EXPECT_EQ(meter.current(), 0);
  }
}

// Its thread goes on without it, and so does the one that ended it.
TEST(Rerun, AScopeThatEndsOnAnotherThreadIsGoneOnItsOwn) {
  std::unique_ptr<detail::RerunScope> scope;
  std::promise<void> opened, ended;
  std::thread owner([&] {
    scope = std::make_unique<detail::RerunScope>(
        detail::RerunOptions(), detail::Tensors(), [](const detail::Tensors&) {});
    opened.set_value();
    ended.get_future().wait();
    const auto x = leaf({4});
    x.sin().exp().sum().backward();
    EXPECT_TRUE(x.grad().defined());
  });
  opened.get_future().wait();
  scope.reset();
  const auto here = leaf({4});
  {
    Recompute own;
    here.sin().exp();
    EXPECT_EQ(own.stats().ops_recorded, 2u);
  }
  ended.set_value();
  owner.join();
}

TEST(Rerun, ExceptionInTheSecondRunLeavesTheGraphUsable) {
  int calls = 0;
  const auto x = leaf({4});
  const auto y = checkpoint(
      rerun(),
      [&](const Tensor& t) {
        if (++calls == 2) {
          throw std::runtime_error("once");
        }
        return t.sin().exp();
      },
      x);
  EXPECT_THROW(y.sum().backward({}, /*retain_graph=*/true), std::runtime_error);
  EXPECT_FALSE(is_recording());
  y.sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

}  // namespace
}  // namespace retape::testing
