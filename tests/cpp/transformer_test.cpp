// models/transformer and models/moe: what they compute, and that it is the same recomputed.
#include "naive_rerun.h"
#include "verify_support.h"

#include <moe/model.h>
#include <transformer/model.h>

#include <map>
#include <optional>
#include <string>

namespace retape::testing {
namespace {

struct Transformer {
  using Config = transformer::Config;
  using Model = transformer::Model;
};

struct Moe {
  using Config = moe::Config;
  using Model = moe::Model;
};

template <typename Which>
typename Which::Model made(const typename Which::Config& config) {
  torch::manual_seed(1);
  return typename Which::Model(config);
}

struct Trained {
  Tensor loss;
  std::map<std::string, Tensor> grads;
  Tensor generator_state;
  int64_t held = 0;       // bytes, when backward began
  uint64_t replayed = 0;  // ops, by the scope around forward
};

// One step. The model's owner lets go of it before backward.
template <typename Which>
Trained train(
    typename Which::Config config,
    models::Stacking stacking = {},
    std::optional<Policy> policy = {}) {
  config.stacking = std::move(stacking);
  auto model = made<Which>(config);
  const auto ids = transformer::closed_form_ids(config);
  const auto parameters = model->named_parameters();
  Trained trained;
  MemoryMeter meter;
  torch::manual_seed(1234);
  std::optional<Recompute> scope;
  if (policy) {
    scope.emplace(*policy, "model");
  }
  trained.loss = model->forward(ids).loss;
  if (scope) {
    scope->close();
  }
  model = nullptr;
  trained.held = meter.current();
  trained.loss.backward();
  for (const auto& parameter : parameters) {
    trained.grads[parameter.key()] = parameter.value().grad();
  }
  trained.generator_state = at::detail::getDefaultCPUGenerator().get_state();
  trained.replayed = scope ? scope->stats().ops_replayed : 0;
  return trained;
}

void expect_same(const Trained& plain, const Trained& other) {
  EXPECT_TRUE(same_bits(plain.loss, other.loss));
  EXPECT_TRUE(same_bits(plain.generator_state, other.generator_state));
  ASSERT_EQ(plain.grads.size(), other.grads.size());
  for (const auto& [name, grad] : plain.grads) {
    EXPECT_TRUE(same_bits(grad, other.grads.at(name))) << name;
  }
}

void expect_recomputed(const Trained& plain, const Trained& other) {
  expect_same(plain, other);
  EXPECT_LT(other.held, plain.held);
}

models::Stacking each(std::function<Tensor(const models::Layer&, const Tensor&)> call) {
  return [call](const std::vector<models::Layer>& layers, Tensor x) {
    for (const auto& layer : layers) {
      x = call(layer, x);
    }
    return x;
  };
}

models::Stacking run_again() {
  return each([](const models::Layer& layer, const Tensor& x) {
    return rerun_checkpoint({}, [layer, x] { return layer(x); });
  });
}

models::Stacking run_again_reentrant() {
  return each([](const models::Layer& layer, const Tensor& x) {
    const TensorsFunction function = [layer](const std::vector<Tensor>& in) {
      return std::vector<Tensor>{layer(in[0])};
    };
    return reentrant_checkpoint(function, {x})[0];
  });
}

template <typename Which>
class LanguageModel : public ::testing::Test {
 protected:
  // With dropout, in each dtype.
  static std::vector<typename Which::Config> configs() {
    std::vector<typename Which::Config> configs(2);
    configs[1].dtype = torch::kBFloat16;
    for (auto& config : configs) {
      config.dropout = 0.3;
    }
    return configs;
  }
};

using Kinds = ::testing::Types<Transformer, Moe>;
TYPED_TEST_SUITE(LanguageModel, Kinds);

TYPED_TEST(LanguageModel, RecomputedGradientsHaveThePlainOnesBits) {
  for (const auto& config : this->configs()) {
    SCOPED_TRACE(config.dtype);
    const auto plain = train<TypeParam>(config);
    for (const auto& policy : {Policy::full(), drop_all(), Policy::cheap()}) {
      SCOPED_TRACE(policy.describe());
      const auto scoped = train<TypeParam>(config, {}, policy);
      expect_recomputed(plain, scoped);
      EXPECT_GT(scoped.replayed, 0u);
      expect_recomputed(plain, train<TypeParam>(config, models::replayed(policy)));
    }
  }
}

TYPED_TEST(LanguageModel, EveryParameterHasAGradient) {
  for (const auto& config : this->configs()) {
    SCOPED_TRACE(config.dtype);
    for (const auto& [name, grad] : train<TypeParam>(config).grads) {
      ASSERT_TRUE(grad.defined()) << name;
      EXPECT_EQ(grad.scalar_type(), config.dtype) << name;
      EXPECT_TRUE(grad.isfinite().all().template item<bool>()) << name;
      EXPECT_TRUE(grad.any().template item<bool>()) << name << " is zero";
    }
  }
}

TYPED_TEST(LanguageModel, EqualInEveryOrderWithItsLayersReplayed) {
  for (auto config : this->configs()) {
    SCOPED_TRACE(config.dtype);
    config.stacking = models::replayed();
    const auto step = [&] {
      auto model = made<TypeParam>(config);
      Start start;
      for (const auto& parameter : model->named_parameters()) {
        start.leaves.emplace_back(parameter.key(), parameter.value());
      }
      start.forward = [model, ids = transformer::closed_form_ids(config)]() mutable {
        return retape::Outcome{{{"loss", model->forward(ids).loss}}, {}};
      };
      return start;
    };
    auto options = by_itself();
    options.orders = true;
    options.regions = {"layers.0", "layers.1", "layers.2"};
    const auto verdict = verify(step, options);
    EXPECT_EQ(verdict.kind, Kind::Equal) << verdict.explain();
    EXPECT_EQ(verdict.orders.size(), 3u);  // as it is, twice, two forwards
  }
}

TYPED_TEST(LanguageModel, TheStackingIsGivenEveryLayerOnce) {
  typename TypeParam::Config config;
  size_t given = 0;
  const auto stacking = [&](const std::vector<models::Layer>& layers, const Tensor& x) {
    given += layers.size();
    return models::run_stack({}, layers, x);
  };
  expect_same(train<TypeParam>(config), train<TypeParam>(config, stacking));
  EXPECT_EQ(given, 3u);
}

TYPED_TEST(LanguageModel, LayersMayBeCalledAgainInBackward) {
  for (const auto& config : this->configs()) {
    SCOPED_TRACE(config.dtype);
    expect_recomputed(train<TypeParam>(config), train<TypeParam>(config, run_again()));
  }
}

TYPED_TEST(LanguageModel, ATokenSeesNothingAfterIt) {
  const typename TypeParam::Config config;
  auto model = made<TypeParam>(config);
  auto ids = transformer::closed_form_ids(config);
  const auto before = model->forward(ids).logits;
  ids.select(1, 6).add_(1).remainder_(config.vocabulary);
  const auto after = model->forward(ids).logits;
  EXPECT_TRUE(torch::allclose(before.slice(1, 0, 6), after.slice(1, 0, 6)));
  for (int64_t token = 6; token < config.tokens; ++token) {
    EXPECT_FALSE(torch::allclose(before.select(1, token), after.select(1, token))) << token;
  }
}

TEST(Transformer, ReentrantRerunsAreRightToo) {
  const transformer::Config config;
  expect_recomputed(train<Transformer>(config), train<Transformer>(config, run_again_reentrant()));
}

TEST(Transformer, HeadsMustDivideTheWidth) {
  transformer::Config config;
  config.heads = 3;
  EXPECT_THROW(made<Transformer>(config), c10::Error);
}

moe::Experts experts_of(const moe::Config& config) {
  torch::manual_seed(1);
  return moe::Experts(config);
}

TEST(Moe, RoutesDifferBetweenTokens) {
  const moe::Config config;
  const auto rows = leaf({40, config.width});
  const auto routes = experts_of(config)->route(rows);
  const auto choices = routes.chosen.flatten().bincount({}, config.experts);
  EXPECT_EQ(choices.sum().item<int64_t>(), 80);
  EXPECT_GT(choices.min().item<int64_t>(), 0);
  const auto pairs = std::get<0>(at::unique_dim(routes.chosen, 0));
  EXPECT_GT(pairs.size(0), 6) << "as ordered pairs: of 12";
  EXPECT_TRUE(torch::allclose(routes.weights.sum(-1), torch::ones(40)));
  EXPECT_TRUE((routes.chosen.select(1, 0) != routes.chosen.select(1, 1)).all().item<bool>());
}

TEST(Moe, ARowIsTheWeightedSumOfWhatItsExpertsMake) {
  const moe::Config config;
  auto experts = experts_of(config);
  const auto rows = leaf({40, config.width});
  const auto routes = experts->route(rows);
  std::vector<Tensor> alone;  // all rows through one expert
  for (int64_t i = 0; i < config.experts; ++i) {
    const auto chosen = torch::full({40, 1}, i, torch::kInt64);
    alone.push_back(experts->run(rows, {routes.probabilities, chosen, torch::ones({40, 1})}));
  }
  const auto out = experts->run(rows, routes);
  for (int64_t row = 0; row < 40; ++row) {
    auto expected = torch::zeros(config.width);
    for (int64_t place = 0; place < config.experts_per_token; ++place) {
      const auto expert = routes.chosen[row][place].item<int64_t>();
      expected = expected + alone[expert][row] * routes.weights[row][place];
    }
    EXPECT_TRUE(torch::allclose(out[row], expected, 1e-5, 1e-7)) << row;
  }
}

TEST(Moe, TheBalanceLossIsOneForExpertsThatAreAlikeAndMoreForAFavourite) {
  const auto chosen = torch::tensor({0, 1, 2, 3}, torch::kInt64).view({4, 1});
  const auto alike = torch::full({4, 4}, 0.25);
  EXPECT_FLOAT_EQ(moe::balance_loss({alike, chosen, {}}).item<float>(), 1);
  const auto favourite = torch::tensor({0.7, 0.1, 0.1, 0.1}, torch::kFloat32).repeat({4, 1});
  EXPECT_FLOAT_EQ(
      moe::balance_loss({favourite, torch::zeros_like(chosen), {}}).item<float>(), 2.8f);
}

TEST(Moe, ExpertsPerTokenAreSomeOfThem) {
  moe::Config config;
  config.experts_per_token = 5;
  EXPECT_THROW(experts_of(config), c10::Error);
}

TEST(Moe, WhatASecondRunPutsOnTheListDoesNotReachTheNextForward) {
  const moe::Config config;
  auto model = made<Moe>(config);
  const auto ids = transformer::closed_form_ids(config);
  const auto first = model->forward(ids);
  EXPECT_TRUE(model->balance_losses().empty());
  first.loss.backward();
  EXPECT_TRUE(model->balance_losses().empty());

  model->set_stacking(models::replayed());
  model->forward(ids).loss.backward();
  EXPECT_TRUE(model->balance_losses().empty()) << "replay calls no layer";

  model->set_stacking(run_again());
  model->forward(ids).loss.backward();
  EXPECT_EQ(model->balance_losses().size(), 3u) << "one of each layer's second run";

  model->set_stacking({});
  const auto last = model->forward(ids);
  EXPECT_TRUE(same_bits(first.balance, last.balance));
  EXPECT_TRUE(same_bits(first.ce, last.ce));
}

// A first run without a graph leaves balance losses without one: silently, routers and all before
// them are not told to balance.
TEST(Moe, ReentrantRerunsLoseTheBalanceLossesGradient) {
  const moe::Config config;
  const auto plain = train<Moe>(config);
  const auto rerun = train<Moe>(config, run_again_reentrant());
  EXPECT_TRUE(same_bits(plain.loss, rerun.loss));
  for (const auto& [name, grad] : plain.grads) {
    const bool after = name == "ends.norm.weight" || name == "ends.head.weight" ||
        name.starts_with("layers.2.mlp.experts.");
    EXPECT_EQ(static_cast<bool>(same_bits(grad, rerun.grads.at(name))), after) << name;
  }
}

}  // namespace
}  // namespace retape::testing
