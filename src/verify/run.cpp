#include "verify/run.h"

#include "check/readable.h"
#include "tape/shape_text.h"
#include "torch/untracked_guard.h"

#include <retape/eager.h>
#include <retape/error.h>
#include <retape/recompute.h>

#include <ATen/autocast_mode.h>
#include <ATen/ops/add.h>

#include <algorithm>
#include <numeric>

namespace retape::detail {

namespace {

constexpr size_t kAllOrders = 4;  // losses; of more, orders would soon be thousands

// All of up to four losses; of more, rotations and those reversed: each comes first, last, and
// right before and behind its neighbours.
std::vector<std::vector<size_t>> permutations(size_t count) {
  std::vector<std::vector<size_t>> found;
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  if (count <= kAllOrders) {
    do {
      found.push_back(order);
    } while (std::next_permutation(order.begin(), order.end()));
    return found;
  }
  for (size_t i = 0; i < count; ++i) {
    found.push_back(order);
    found.emplace_back(order.rbegin(), order.rend());
    std::rotate(order.begin(), order.begin() + 1, order.end());
  }
  return found;
}

std::string quoted(const std::string& what, const std::string& name) {
  return what + " \"" + name + "\"";
}

void check_leaf(const NamedTensor& leaf) {
  const auto& [name, tensor] = leaf;
  if (!tensor.defined()) {
    throw UsageError("[verify] " + quoted("leaf", name) + " is undefined. Fix: leave it out.");
  }
  if (!tensor.is_leaf() && !tensor.retains_grad()) {
    throw UsageError(
        "[verify] " + quoted("leaf", name) +
        " was made by an op, so that no gradient will be kept in it: "
        "expected a parameter or an input. Fix: detach().requires_grad_() it before forward, or "
        "retain_grad().");
  }
}

void clear_gradients(const Start& start) {
  for (const auto& [name, leaf] : start.leaves) {
    leaf.mutable_grad().reset();
  }
}

void take(
    Trace& trace, int step, const char* what, const NamedTensors& named, const char* suffix = "") {
  for (const auto& [name, tensor] : named) {
    trace.tensors.push_back({step, what, name + suffix, frozen(tensor, quoted(what, name))});
  }
}

}  // namespace

std::vector<Order> orders_of(const std::vector<std::string>& losses, bool all) {
  std::vector<Order> orders{{"backward", {}, 1, 1}};
  if (!all) {
    return orders;
  }
  if (losses.size() > 1) {
    for (auto& order : permutations(losses.size())) {
      std::string name = "losses ";
      for (const size_t i : order) {
        name += (i == order.front() ? "" : ", ") + losses[i];
      }
      orders.push_back({name, std::move(order), 1, 1});
    }
  }
  orders.push_back({"backward twice", {}, 2, 1});
  orders.push_back({"two forwards", {}, 1, 2});
  return orders;
}

Runs::Runs(const Subject& subject, const VerifyOptions& options, const Backward& backward)
    : subject_(subject),
      options_(options),
      backward_(backward),
      surroundings_(Surroundings::now()),
      before_(GeneratorStates::now()) {}

Runs::~Runs() {
  if (started_) {
    started_->restore();  // private ones, if they are the caller's
  }
  before_.restore();
  set_surroundings(surroundings_);
}

Trace Runs::plain(const Order& order) {
  Eager eager;
  return run(order, false);
}

Trace Runs::recomputed(const Order& order) {
  return run(order, true);
}

// Whatever making a start draws, the step begins with the same numbers every time.
Start Runs::begin() {
  set_surroundings(surroundings_);
  before_.restore();
  auto start = subject_();
  if (!start.forward) {
    throw UsageError("[verify] a start has no forward function. Fix: set Start::forward.");
  }
  if (!started_) {
    started_ = GeneratorStates::now(start.generators);
  } else {
    started_->restore(start.generators);
  }
  return start;
}

Trace Runs::run(const Order& order, bool recompute) {
  Trace trace;
  const auto start = begin();
  for (int i = 0; i < std::max(options_.steps, 1); ++i) {
    step(order, recompute, i, start, trace);
  }
  clear_gradients(start);       // one may be the very tensor that backward got from replay
  at::autocast::clear_cache();  // its casts have graphs
  return trace;
}

void Runs::step(
    const Order& order, bool recompute, int number, const Start& start, Trace& trace) const {
  std::for_each(start.leaves.begin(), start.leaves.end(), check_leaf);
  clear_gradients(start);
  at::autocast::clear_cache();  // casts of weights that have changed, or are others now
  {
    const auto outcomes = forward(order, recompute, start);
    backward(order, take_losses(number, outcomes, trace));
  }
  take_what_is_left(number, start, trace);
}

std::vector<Outcome> Runs::forward(const Order& order, bool recompute, const Start& start) const {
  std::vector<Outcome> outcomes;
  for (int i = 0; i < order.forwards; ++i) {
    std::optional<Recompute> scope;
    if (recompute && options_.scope) {
      scope.emplace(options_.policy, "step");
    }
    outcomes.push_back(start.forward());
  }
  return outcomes;
}

// Returns those that backward can start from.
std::vector<at::Tensor> Runs::take_losses(
    int step, const std::vector<Outcome>& outcomes, Trace& trace) const {
  std::vector<at::Tensor> roots;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const char* suffix = i == 0 ? "" : ", second forward";
    take(trace, step, "loss", outcomes[i].losses, suffix);
    take(trace, step, "output", outcomes[i].outputs, suffix);
    for (const auto& [name, loss] : outcomes[i].losses) {
      if (!loss.defined() || loss.numel() != 1) {
        throw UsageError(
            "[verify] " + quoted("loss", name) + ": expected one number, got " + shape_text(loss) +
            ". Fix: sum() or mean() it, or hand it over as an output.");
      }
      if (loss.requires_grad()) {
        roots.push_back(loss);
        if (i == 0 && step == 0) {
          trace.losses.push_back(name);
        }
      }
    }
  }
  return roots;
}

void Runs::backward(const Order& order, const std::vector<at::Tensor>& losses) const {
  if (losses.empty()) {
    return;
  }
  if (order.joint()) {
    auto sum = losses[0];
    for (size_t i = 1; i < losses.size(); ++i) {
      sum = sum + losses[i];
    }
    for (int i = 0; i < order.backwards; ++i) {
      backward_(sum, i + 1 < order.backwards);
    }
    return;
  }
  for (size_t i = 0; i < order.losses.size(); ++i) {
    backward_(losses.at(order.losses[i]), i + 1 < order.losses.size());
  }
}

void Runs::take_what_is_left(int step, const Start& start, Trace& trace) const {
  for (const auto& [name, leaf] : start.leaves) {
    if (!leaf.requires_grad()) {
      continue;
    }
    trace.tensors.push_back(
        {step, "gradient", name, frozen(leaf.grad(), quoted("gradient", name))});
  }
  if (start.optimize) {
    start.optimize();
  }
  take(trace, step, "parameter", start.leaves);  // forward may write them, too
  if (start.buffers) {
    take(trace, step, "buffer", start.buffers());
  }
  take(trace, step, "generator", GeneratorStates::now(start.generators).named());
  if (start.states) {
    take(trace, step, "generator", start.states());
  }
}

}  // namespace retape::detail
