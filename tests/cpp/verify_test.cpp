#include "verify_support.h"

#include <retape/testing.h>

#include <ATen/autocast_mode.h>
#include <gtest/gtest-spi.h>

#include <set>

namespace retape::testing {
namespace {

TEST(Verify, EqualOnABlockWithAttentionBatchNormAndDropout) {
  auto block = made();
  const auto x = leaf({3, 5, 8});
  SubjectParts parts;
  parts.inputs = {{"x", x}};
  VerifyOptions options;
  options.regions = {"step"};
  for (const auto& policy : {Policy::full(), drop_all(), Policy::cheap()}) {
    options.policy = policy;
    const auto verdict = verify(
        subject(*block, [&] { return block->forward(x).square().mean(); }, parts), options);
    EXPECT_EQ(verdict.kind, Kind::Equal) << policy.describe() << "\n" << verdict.explain();
    EXPECT_EQ(verdict.tensors_compared, 1u + 2 * (8 + 1) + 3 + 1)
        << "loss, leaves and gradients, buffers, generator";
    EXPECT_GT(verdict.ops_replayed, 0u);
    EXPECT_GT(verdict.values_checked, 0u);
    EXPECT_EQ(verdict.orders, std::vector<std::string>{"backward"});
  }
}

TEST(Verify, EqualWhereTheStepRecomputesByItself) {
  auto block = made();
  const auto x = leaf({3, 5, 8});
  for (const auto method : {Method::Replay, Method::Rerun}) {
    LayerOptions layers;
    layers.checkpoint.method = method;
    enable(*block, layers);
    const auto verdict = verify(
        *block, [&] { return block->forward(x).square().mean(); }, by_itself());
    EXPECT_EQ(verdict.kind, Kind::Equal) << verdict.explain();
    EXPECT_EQ(verdict.reruns > 0, method == Method::Rerun);
  }
}

TEST(Verify, LeavesTheModuleAndTheGeneratorAsTheyWere) {
  auto block = made();
  const auto x = leaf({3, 5, 8});
  block->forward(x).sum().backward();
  const auto state = [&] {
    std::vector<Tensor> all{at::detail::getDefaultCPUGenerator().get_state()};
    for (const auto& p : block->parameters()) {
      all.push_back(p.detach().clone());
      all.push_back(p.grad().clone());
    }
    for (const auto& b : block->buffers()) {
      all.push_back(b.clone());
    }
    return all;
  };
  const auto before = state();
  SubjectParts parts;
  parts.optimizer = [&] {
    const auto sgd = std::make_shared<torch::optim::SGD>(block->parameters(), 0.1);
    return [sgd] { sgd->step(); };
  };
  EXPECT_SAME_GRADIENTS(subject(*block, [&] { return block->forward(x).square().mean(); }, parts));
  const auto after = state();
  ASSERT_EQ(before.size(), after.size());
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(same_bits(before[i], after[i])) << i;
  }
}

TEST(Verify, LeavesGradModeAndSettingsAsTheyWere) {
  const auto verdict = verify(step_of([](const Tensor& w) {
    const auto loss = square_sin(w);
    c10::GradMode::set_enabled(false);
    at::globalContext().setDeterministicAlgorithms(true, false);
    return loss;
  }));
  EXPECT_EQ(verdict.kind, Kind::Equal) << verdict.explain();
  EXPECT_TRUE(c10::GradMode::is_enabled());
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
}

TEST(Verify, EveryRunHasTheCallersAutocast) {
  const auto weight = leaf({4, 4});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::increment_nesting();
  std::vector<torch::Dtype> seen;
  const auto verdict = verify(step_of(
      [&](const Tensor& w) {
        const auto y = w.reshape({1, 4}).matmul(weight);
        seen.push_back(y.scalar_type());
        at::autocast::set_autocast_enabled(at::kCPU, false);
        return y.to(torch::kFloat32).sin().sum();
      },
      {{"weight", weight}}));
  EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
  at::autocast::decrement_nesting();
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(verdict.kind, Kind::Equal) << verdict.explain();
  EXPECT_EQ(seen, std::vector<torch::Dtype>(3, torch::kBFloat16));
}

TEST(Verify, TheFirstGraphIsGoneWhenTheSecondRunBegins) {
  c10::weak_intrusive_ptr<c10::TensorImpl> last{c10::intrusive_ptr<c10::TensorImpl>()};
  int runs = 0, alive = 0;
  verify(step_of([&](const Tensor& w) {
    alive += runs++ > 0 && !last.expired();
    const auto h = w.square();
    last = c10::weak_intrusive_ptr<c10::TensorImpl>(h.getIntrusivePtr());
    return h.sin().sum();
  }));
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(alive, 0);
}

TEST(Verify, DifferentSaysWhichHowManyHowFarAndWhere) {
  const auto verdict = verify(step_of([](const Tensor& w) {
    auto factor = torch::ones({4});
    if (is_recording()) {
      factor[2] = std::nextafter(1.0f, 2.0f);
    }
    return (w * factor).sum();
  }));
  ASSERT_EQ(verdict.kind, Kind::Different) << verdict.explain();
  ASSERT_FALSE(verdict.differences.empty());
  const auto& gradient = verdict.differences.back();
  EXPECT_EQ(gradient.order, "backward");
  EXPECT_EQ(gradient.step, 0);
  EXPECT_EQ(gradient.what, "gradient");
  EXPECT_EQ(gradient.name, "w");
  EXPECT_EQ(gradient.differing, 1u);
  EXPECT_EQ(gradient.elements, 4u);
  EXPECT_EQ(gradient.ulps, 1u);
  EXPECT_EQ(gradient.first, "[2]");
  EXPECT_EQ(gradient.plain, "1");
  EXPECT_EQ(gradient.recomputed, "1.00000012");
  EXPECT_NE(
      verdict.explain().find(
          "gradient \"w\": 1 of 4 elements, at most 1 ulp apart, first at [2]: 1 against "
          "1.00000012"),
      std::string::npos)
      << verdict.explain();
}

TEST(Verify, AGradientThatIsMissingDiffersFromZeros) {
  const auto idle = torch::ones({2}).set_requires_grad(true);
  const auto verdict = verify(step_of(
      [&](const Tensor& w) {
        return square_sin(w) + (is_recording() ? (idle * 0).sum() : torch::zeros({}));
      },
      {{"idle", idle}}));
  ASSERT_EQ(verdict.kind, Kind::Different);
  EXPECT_EQ(verdict.differences.back().name, "idle");
  EXPECT_EQ(verdict.differences.back().plain, "none");
  EXPECT_EQ(verdict.differences.back().recomputed, "float32 [2]");
}

TEST(Verify, OutputsParametersBuffersAndGeneratorsAreComparedToo) {
  const auto kind_of = [](const std::string& wrong) {
    const auto verdict = verify([=] {
      const auto buffer = torch::zeros({2});
      Start start;
      const auto w = torch::ones({3}).set_requires_grad(true);
      const auto frozen = torch::zeros({2});
      start.leaves = {{"w", w}, {"frozen", frozen}};
      start.buffers = [=] { return NamedTensors{{"b", buffer}}; };
      start.forward = [=] {
        const auto is = [&](const char* what) { return is_recording() && wrong == what; };
        if (is("buffer")) {
          buffer.add_(1);
        }
        if (is("generator")) {
          torch::rand({1});
        }
        if (is("parameter")) {
          frozen.add_(1);
        }
        return retape::Outcome{
            {{"loss", square_sin(w)}}, {{"y", torch::full({2}, is("output") ? 1 : 0)}}};
      };
      return start;
    });
    EXPECT_EQ(verdict.kind, Kind::Different) << wrong;
    EXPECT_EQ(verdict.differences.size(), 1u);
    return verdict.differences.empty() ? "" : verdict.differences[0].what;
  };
  for (const std::string wrong : {"output", "parameter", "buffer", "generator"}) {
    EXPECT_EQ(kind_of(wrong), wrong);
  }
}

TEST(Verify, ADiscardedOutputIsBroughtBackToBeCompared) {
  const auto verdict = verify(
      [] {
        const auto w = torch::ones({4}).set_requires_grad(true);
        Start start;
        start.leaves = {{"w", w}};
        start.forward = [=] {
          OutputDiscardCheckpoint ckpt("discarded");
          const auto h = ckpt.checkpoint([](const Tensor& x) { return x.square().sin(); }, w);
          const auto loss = h.cos().sum();
          ckpt.discard_output_and_register_recompute(loss);
          return retape::Outcome{{{"loss", loss}}, {{"h", h}}};
        };
        return start;
      },
      by_itself());
  EXPECT_EQ(verdict.kind, Kind::Equal) << verdict.explain();
}

TEST(Verify, AnErrorOfTheRecomputedRunIsADifference) {
  const auto raised = [](std::function<void()> raise) {
    return verify(step_of([=](const Tensor& w) {
      if (is_recording()) {
        raise();
      }
      return square_sin(w);
    }));
  };
  const auto ours = raised([] { throw ReplayMismatch("[test] ours"); });
  EXPECT_EQ(ours.kind, Kind::Different);
  EXPECT_EQ(ours.error, "[test] ours");
  EXPECT_TRUE(ours.vacuous.empty());
  EXPECT_EQ(raised([] { TORCH_CHECK(false, "torch's"); }).error, "torch's");
  EXPECT_EQ(raised([] { throw std::logic_error("anyone's"); }).error, "anyone's");
  EXPECT_FALSE(is_recording());
}

TEST(Verify, AnErrorOfThePlainRunPassesThrough) {
  EXPECT_THROW(
      verify(step_of([](const Tensor&) -> Tensor { throw std::logic_error("plain"); })),
      std::logic_error);
  EXPECT_FALSE(is_eager());
}

TEST(Verify, StepsAreComparedOneByOne) {
  auto block = made();
  const auto x = leaf({3, 5, 8});
  int forwards = 0;
  SubjectParts parts;
  parts.optimizer = [&] {
    forwards = 0;
    const auto sgd = std::make_shared<torch::optim::SGD>(block->parameters(), 0.1);
    return [sgd] { sgd->step(); };
  };
  VerifyOptions options;
  options.steps = 3;
  bool wrong = false;
  const auto step = [&] {
    const double scale = wrong && is_recording() && forwards == 2 ? 1.5 : 1;
    ++forwards;
    return block->forward(x).square().mean() * scale;
  };
  const auto right = verify(subject(*block, step, parts), options);
  EXPECT_EQ(right.kind, Kind::Equal) << right.explain();
  EXPECT_EQ(right.tensors_compared, 3u * (1 + 8 + 8 + 3 + 1))
      << "parameters after the optimizer as well";
  wrong = true;
  const auto verdict = verify(subject(*block, step, parts), options);
  ASSERT_EQ(verdict.kind, Kind::Different);
  for (const auto& difference : verdict.differences) {
    EXPECT_EQ(difference.step, 2);
  }
  EXPECT_EQ(verdict.differences.back().what, "parameter");
}

// Its second backward gives another gradient, if it was recorded.
struct GrowsTired : torch::autograd::Function<GrowsTired> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->saved_data["recorded"] = is_recording();
    context->saved_data["calls"] = 0;
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, torch::autograd::variable_list grads) {
    const auto calls = context->saved_data["calls"].toInt();
    context->saved_data["calls"] = calls + 1;
    return {context->saved_data["recorded"].toBool() && calls > 0 ? grads[0] * 2 : grads[0]};
  }
};

TEST(Verify, OrdersFindWhatOneBackwardDoesNot) {
  VerifyOptions options;
  const auto tired = step_of([](const Tensor& w) { return square_sin(GrowsTired::apply(w)); });
  EXPECT_EQ(verify(tired, options).kind, Kind::Equal);
  options.orders = true;
  const auto verdict = verify(tired, options);
  EXPECT_EQ(
      verdict.orders, (std::vector<std::string>{"backward", "backward twice", "two forwards"}));
  ASSERT_EQ(verdict.differences.size(), 1u) << verdict.explain();
  EXPECT_EQ(verdict.differences[0].order, "backward twice");
}

Subject with_losses(size_t count) {
  return [=] {
    const auto w = torch::linspace(0.5, 2, 4).set_requires_grad(true);
    Start start;
    start.leaves = {{"w", w}};
    start.forward = [=] {
      const auto h = w.square().sin();
      retape::Outcome outcome;
      for (size_t i = 0; i < count; ++i) {
        outcome.losses.emplace_back(
            std::string(1, static_cast<char>('a' + i)), (h * double(i + 1)).exp().sum());
      }
      return outcome;
    };
    return start;
  };
}

TEST(Verify, LossesApartRunInEveryOrder) {
  VerifyOptions options;
  options.orders = true;
  const auto two = verify(with_losses(2), options);
  EXPECT_EQ(two.kind, Kind::Equal) << two.explain();
  EXPECT_EQ(
      two.orders,
      (std::vector<std::string>{
          "backward", "losses a, b", "losses b, a", "backward twice", "two forwards"}));
  EXPECT_EQ(verify(with_losses(3), options).orders.size(), 3u + 6);
  EXPECT_EQ(verify(with_losses(4), options).orders.size(), 3u + 24);
  const auto five = verify(with_losses(5), options);
  EXPECT_EQ(five.kind, Kind::Equal) << five.explain();
  EXPECT_EQ(five.orders.size(), 3u + 2 * 5);
  for (const std::string loss : {"a", "b", "c", "d", "e"}) {
    const auto times = [&](auto matches) {
      return std::count_if(five.orders.begin(), five.orders.end(), matches);
    };
    EXPECT_EQ(times([&](const auto& order) { return order.starts_with("losses " + loss); }), 2)
        << loss;
    EXPECT_EQ(times([&](const auto& order) { return order.ends_with(", " + loss); }), 2) << loss;
  }
  EXPECT_EQ(
      std::set<std::string>(five.orders.begin(), five.orders.end()).size(), five.orders.size());
}

TEST(Verify, AnOrderThatOnlyThePlainRunRefusesIsDifferent) {
  VerifyOptions options;
  options.orders = true;
  const auto verdict = verify(
      [forwards = std::make_shared<int>(0)] {
        *forwards = 0;
        auto start = step_of(square_sin)();
        start.forward = [forwards, forward = start.forward] {
          TORCH_CHECK(++*forwards < 2 || !retape::is_eager(), "once is enough");
          return forward();
        };
        return start;
      },
      options);
  ASSERT_EQ(verdict.kind, Kind::Different);
  ASSERT_EQ(verdict.differences.size(), 1u);
  EXPECT_EQ(verdict.differences[0].what, "error");
  EXPECT_EQ(verdict.differences[0].order, "two forwards");
  EXPECT_NE(verdict.explain().find("once is enough"), std::string::npos) << verdict.explain();
  EXPECT_TRUE(verdict.skipped.empty());
}

TEST(Verify, StatesOfOtherGeneratorsAreCompared) {
  int64_t state = 0;  // of a generator that knows nothing of torch
  const auto verdict = verify([&] {
    state = 0;
    auto start = step_of([&](const Tensor& w) {
      state += retape::is_eager() ? 1 : 2;
      return square_sin(w);
    })();
    start.states = [&] { return NamedTensors{{"mine", torch::tensor(state)}}; };
    return start;
  });
  ASSERT_EQ(verdict.kind, Kind::Different);
  ASSERT_EQ(verdict.differences.size(), 1u);
  EXPECT_EQ(verdict.differences[0].what, "generator");
  EXPECT_EQ(verdict.differences[0].name, "mine");
}

TEST(Verify, AnotherReasonMakesWhatWasEqualVacuous) {
  auto verdict = verify(step_of(square_sin));
  ASSERT_EQ(verdict.kind, Kind::Equal) << verdict.explain();
  verdict.add_vacuous("a layer slept");
  EXPECT_VACUOUS(verdict, "a layer slept");
  verdict.kind = Kind::Different;
  verdict.add_vacuous("another slept");
  EXPECT_EQ(verdict.kind, Kind::Different);
}

TEST(Verify, AnOrderThatThePlainRunRefusesIsSkipped) {
  VerifyOptions options;
  options.orders = true;
  const auto verdict = verify(
      [] {
        const auto w = torch::ones({4}).set_requires_grad(true), scale = torch::ones({4});
        Start start;
        start.leaves = {{"w", w}};
        start.forward = [=] {
          scale.add_(1);  // the first forward has saved it
          return retape::Outcome{{{"loss", (w * scale).sin().sum()}}, {}};
        };
        return start;
      },
      options);
  EXPECT_EQ(verdict.kind, Kind::Equal) << verdict.explain();
  ASSERT_EQ(verdict.skipped.size(), 1u);
  EXPECT_TRUE(
      says(verdict.skipped, "two forwards: one of the variables needed for gradient computation"));
}

TEST(Verify, PrivateGeneratorsBeginAlike) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  const auto before = generator.get_state();
  auto draws = step_of(
      [=](const Tensor& w) { return (w * torch::rand({4}, generator)).sin().sum(); });
  EXPECT_VACUOUS(verify(draws), "the plain run differs from itself in loss \"loss\"");
  generator.set_state(before);
  const auto verdict = verify([&] {
    auto start = draws();
    start.generators = {generator};
    return start;
  });
  EXPECT_EQ(verdict.kind, Kind::Equal) << verdict.explain();
  EXPECT_TRUE(same_bits(before, generator.get_state()));
}

TEST(Verify, ATolerancePassesSmallDifferencesAndSaysSo) {
  const auto nearly = step_of(
      [](const Tensor& w) { return square_sin(w) * (is_recording() ? 1.0001 : 1); });
  EXPECT_EQ(verify(nearly).kind, Kind::Different);
  VerifyOptions options;
  options.tolerance[torch::kFloat32] = {1e-3, 1e-6};
  const auto verdict = verify(nearly, options);
  EXPECT_EQ(verdict.kind, Kind::Equal) << verdict.explain();
  EXPECT_TRUE(verdict.with_tolerance);
  EXPECT_NE(verdict.explain().find("within tolerance, not bit for bit"), std::string::npos);
}

TEST(Verify, RefusesToRunWhereItCannotCompare) {
  const auto step = step_of(square_sin);
  {
    Recompute scope;
    EXPECT_THROW(verify(step), UsageError);
  }
  {
    Eager eager;
    EXPECT_THROW(verify(step), UsageError);
  }
  EXPECT_THROW(verify(step_of([](const Tensor& w) { return w.sin(); })), UsageError)
      << "four losses in one";
  EXPECT_THROW(verify(step_of(square_sin, {{"made", leaf({2}) * 2}})), UsageError) << "not a leaf";
  EXPECT_THROW(verify([] { return Start(); }), UsageError);
}

TEST(ExpectSameGradients, FailsWithTheExplanation) {
  EXPECT_SAME_GRADIENTS(step_of(square_sin));
  ASSERT_SAME_GRADIENTS(step_of(square_sin), VerifyOptions());
  const auto none = [] {
    VerifyOptions options;
    options.policy = Policy::none();
    return options;
  }();
  EXPECT_NONFATAL_FAILURE(
      EXPECT_SAME_GRADIENTS(step_of(square_sin), none), "policy none drops nothing");
}

}  // namespace
}  // namespace retape::testing
