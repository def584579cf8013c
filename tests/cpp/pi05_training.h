// Trains models/pi05 for one step, in a given way, and says what came of it.
#pragma once

#include "support.h"

#include <pi05/model.h>

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

namespace retape::testing {

enum class Order { Joint, MseFirst, CeFirst, MseOnly };  // of the backward passes

struct TrainingStep {
  pi05::Config config;
  Order order = Order::Joint;
  int forwards = 1;          // before the first backward, on different batches
  bool one_cache = false;    // for all forwards; otherwise each has its own
  bool change_keys = false;  // halved between the two passes, by code that is not the model's
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
  int64_t held = 0;                // bytes, when backward began
  uint64_t replayed = 0;           // ops, by the scope around forward
  bool cache_is_forwards = false;  // after backward: the same tensors, the same bits
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

inline std::vector<pi05::Batch> batches_of(const TrainingStep& step) {
  std::vector<pi05::Batch> batches;
  for (int i = 0; i < step.forwards; ++i) {
    batches.push_back(pi05::closed_form_batch(step.config, 0.5 * i));
  }
  return batches;
}

inline std::vector<pi05::Cache> empty_caches(const TrainingStep& step) {
  return std::vector<pi05::Cache>(step.one_cache ? 1 : step.forwards);
}

// Losses summed over all forwards.
inline pi05::Losses forward_all(
    const TrainingStep& step,
    pi05::Model& model,
    const std::vector<pi05::Batch>& batches,
    std::vector<pi05::Cache>& caches) {
  auto sum = forward(step, model, batches[0], caches[0]);
  for (size_t i = 1; i < batches.size(); ++i) {
    const auto losses = forward(step, model, batches[i], caches[i % caches.size()]);
    sum = {sum.mse + losses.mse, sum.ce + losses.ce};
  }
  return sum;
}

inline pi05::Model model_of(const TrainingStep& step, const Way& way) {
  auto config = step.config;
  config.checkpointing = way.layers;
  config.stacking = way.stacking;
  return pi05::Model(config);
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
  auto model = model_of(step, way);
  const auto batches = batches_of(step);
  auto caches = empty_caches(step);

  Trained trained;
  MemoryMeter meter;
  torch::manual_seed(1234);
  std::optional<Recompute> scope;
  if (way.scope) {
    scope.emplace(*way.scope, "pi05");
  }
  const auto losses = forward_all(step, model, batches, caches);
  trained.mse = losses.mse;
  trained.ce = losses.ce;
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
inline void expect_recomputed_right(
    const TrainingStep& step, const Trained& plain, const Way& way) {
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

// The caches of one start, each as forward left it and as it is now.
struct Caches {
  std::list<std::vector<pi05::Cache>> now, made;

  // All entries, by name. Nobody may have put others in their place.
  NamedTensors entries() const {
    NamedTensors named;
    const auto prefix = [&] { return std::to_string(named.size()) + "."; };
    auto before = made.begin();
    for (const auto& caches : now) {
      for (size_t i = 0; i < caches.size(); ++i) {
        for (const auto& [layer, entry] : caches[i]) {
          const auto& then = before->at(i).at(layer);
          EXPECT_TRUE(entry.key.is_same(then.key) && entry.value.is_same(then.value))
              << "layer " << layer;
          named.emplace_back(prefix() + "key", entry.key);
          named.emplace_back(prefix() + "value", entry.value);
        }
      }
      ++before;
    }
    return named;
  }
};

// The step for retape::verify, whose orders of backward take the place of the step's, unless that
// is MseOnly. Caches are compared when backward has run, as buffers.
inline Subject subject_of(const TrainingStep& step, const Way& way) {
  return [=] {
    auto model = model_of(step, way);
    const auto caches = std::make_shared<Caches>();
    torch::manual_seed(1234);
    Start start;
    for (const auto& parameter : model->named_parameters()) {
      start.leaves.emplace_back(parameter.key(), parameter.value());
    }
    start.forward = [=, batches = batches_of(step)]() mutable {
      caches->now.push_back(empty_caches(step));
      const auto losses = forward_all(step, model, batches, caches->now.back());
      caches->made.push_back(caches->now.back());
      retape::Outcome outcome;
      outcome.losses.emplace_back("mse", losses.mse);
      if (step.order != Order::MseOnly) {
        outcome.losses.emplace_back("ce", losses.ce);
      }
      return outcome;
    };
    start.buffers = [=] {
      for (const auto& parameter : model->named_parameters()) {
        const auto grad = parameter.value().grad();
        EXPECT_TRUE(!grad.defined() || grad.isfinite().all().item<bool>()) << parameter.key();
      }
      return caches->entries();
    };
    return start;
  };
}

inline VerifyOptions options_of(const Way& way) {
  VerifyOptions options;
  options.scope = way.scope.has_value();
  options.policy = way.scope.value_or(options.policy);
  return options;
}

}  // namespace retape::testing
