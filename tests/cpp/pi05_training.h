// Trains models/pi05 for one step, in a given way, and says what came of it.
#pragma once

#include "support.h"

#include <pi05/model.h>

#include <map>
#include <optional>
#include <set>
#include <string>

namespace retape::testing {

enum class Order { Joint, MseFirst, CeFirst, MseOnly };  // of the backward passes

struct TrainingStep {
  pi05::Config config;
  Order order = Order::Joint;
  int forwards = 1;           // before the first backward, on different batches
  bool one_cache = false;     // for all forwards; otherwise each has its own
  bool change_keys = false;   // halved between the two passes, by code that is not the model's
};

// How layers are called, the policy of a scope around all of forward, if there is one, and how a
// tower's layers are run.
struct Way {
  std::string name;
  pi05::Checkpointing layers;
  std::optional<Policy> scope;
  models::Stacking stacking = {};
};

inline Way plain_way() {
  return {"plain", {}, {}};
}

inline std::vector<Way> retape_ways() {
  return {
      {"each layer replayed", pi05::replayed(), {}},
      {"each layer of a stack replayed", {}, {}, models::replayed()},
      {"a scope, full", {}, Policy::full()},
      {"a scope, cheap", {}, Policy::cheap()},
  };
}

struct Trained {
  Tensor mse, ce;                       // summed over forwards
  std::map<std::string, Tensor> grads;  // by parameter; undefined where none arrived
  Tensor generator_state;
  int64_t held = 0;                     // bytes, when backward began
  uint64_t replayed = 0;                // ops, by the scope around forward
  bool cache_is_forwards = false;       // after backward: the same tensors, the same bits
};

inline pi05::Losses forward(
    const TrainingStep& step, pi05::Model& model, const pi05::Batch& batch, pi05::Cache& cache) {
  if (!step.change_keys) {
    return model->forward(batch, cache);
  }
  const auto prefix = model->run_prefix(batch, cache);
  if (step.config.insulation) {
    pi05::insulate(cache);
  }
  for (auto& [layer, entry] : cache) {
    entry.key = entry.key * 0.5;
  }
  const auto mse = model->flow_loss(batch, prefix, cache);
  return {mse, model->token_loss(batch, prefix)};
}

inline void backward(Order order, const Tensor& mse, const Tensor& ce) {
  switch (order) {
    case Order::Joint:
      return (mse + ce).backward();
    case Order::MseFirst:
      mse.backward({}, /*retain_graph=*/true);
      return ce.backward();
    case Order::CeFirst:
      ce.backward({}, /*retain_graph=*/true);
      return mse.backward();
    case Order::MseOnly:
      return mse.backward();
  }
}

// `tensors`: the ones that were there; `copies`: what was in them.
inline bool same_entries(
    const std::vector<pi05::Cache>& caches,
    const std::vector<pi05::Cache>& tensors,
    const std::vector<pi05::Cache>& copies) {
  const auto same = [](const Tensor& now, const Tensor& tensor, const Tensor& copy) {
    return now.is_same(tensor) && same_bits(now, copy);
  };
  size_t found = 0, expected = 0;
  for (size_t i = 0; i < caches.size(); ++i) {
    expected += copies[i].size();
    for (const auto& [layer, entry] : caches[i]) {
      const auto& tensor = tensors[i].at(layer);
      const auto& copy = copies[i].at(layer);
      found += same(entry.key, tensor.key, copy.key) && same(entry.value, tensor.value, copy.value);
    }
  }
  return expected > 0 && found == expected;
}

inline Trained train(const TrainingStep& step, const Way& way) {
  auto config = step.config;
  config.checkpointing = way.layers;
  config.stacking = way.stacking;
  pi05::Model model(config);
  std::vector<pi05::Batch> batches;
  for (int i = 0; i < step.forwards; ++i) {
    batches.push_back(pi05::closed_form_batch(config, 0.5 * i));
  }
  std::vector<pi05::Cache> caches(step.one_cache ? 1 : step.forwards);

  Trained trained;
  MemoryMeter meter;
  torch::manual_seed(1234);
  std::optional<Recompute> scope;
  if (way.scope) {
    scope.emplace(*way.scope, "pi05");
  }
  for (int i = 0; i < step.forwards; ++i) {
    const auto losses = forward(step, model, batches[i], caches[i % caches.size()]);
    trained.mse = i == 0 ? losses.mse : trained.mse + losses.mse;
    trained.ce = i == 0 ? losses.ce : trained.ce + losses.ce;
  }
  if (scope) {
    scope->close();
  }
  trained.held = meter.current();

  const auto tensors = caches;
  auto copies = caches;
  for (auto& cache : copies) {
    for (auto& [layer, entry] : cache) {
      entry = {entry.key.detach().clone(), entry.value.detach().clone()};
    }
  }
  backward(step.order, trained.mse, trained.ce);

  for (const auto& parameter : model->named_parameters()) {
    trained.grads[parameter.key()] = parameter.value().grad();
  }
  trained.generator_state = at::detail::getDefaultCPUGenerator().get_state();
  trained.replayed = scope ? scope->stats().ops_replayed : 0;
  trained.cache_is_forwards = same_entries(caches, tensors, copies);
  return trained;
}

// Names of gradients that should be there and are not, and of those that are there and differ.
struct Difference {
  std::set<std::string> missing;
  std::set<std::string> wrong;
  double worst = 0;  // norm of the difference over the norm of what it should be
};

inline Difference difference(const Trained& expected, const Trained& actual) {
  Difference result;
  for (const auto& [name, grad] : expected.grads) {
    const auto& other = actual.grads.at(name);
    if (grad.defined() && !other.defined()) {
      result.missing.insert(name);
    } else if (!same_bits(grad, other)) {
      result.wrong.insert(name);
      result.worst = std::max(result.worst, ((other - grad).norm() / grad.norm()).item<double>());
    }
  }
  return result;
}

// Less was held than in plain training, backward brought it back bit for bit, and the cache is as
// forward left it.
inline void expect_recomputed_right(const TrainingStep& step, const Trained& plain, const Way& way) {
  SCOPED_TRACE(way.name);
  const auto recomputed = train(step, way);
  EXPECT_TRUE(same_bits(plain.mse, recomputed.mse));
  EXPECT_TRUE(same_bits(plain.ce, recomputed.ce));
  EXPECT_EQ(plain.grads.size(), recomputed.grads.size());
  for (const auto& [name, grad] : plain.grads) {
    EXPECT_TRUE(same_bits(grad, recomputed.grads.at(name))) << name;
  }
  EXPECT_TRUE(same_bits(plain.generator_state, recomputed.generator_state));
  EXPECT_TRUE(recomputed.cache_is_forwards);
  EXPECT_LT(recomputed.held, plain.held);
  EXPECT_EQ(recomputed.replayed > 0, way.scope.has_value());
}

}  // namespace retape::testing
