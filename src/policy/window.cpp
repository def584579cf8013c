#include "policy/window.h"

#include "policy/policy_rules.h"
#include "tape/min_cut.h"
#include "tape/region.h"

#include <algorithm>

namespace retape::detail {

namespace {

// Values, ops and what connects them, as a cut: on the sink's side is what must exist in backward.
// Cutting source -> op pays for replaying it, cutting op -> value for keeping the value.
class Problem {
 public:
  explicit Problem(int64_t byte_price) : byte_price_(byte_price) {}

  int node_of(const Value* value) { return node(values_, value); }
  bool knows(const Value* value) const { return values_.count(value) != 0; }

  void require(const Value* value) {
    graph_.add_edge(node_of(value), CutGraph::kSink, CutGraph::kInfinite);
  }

  void add_result(const Op& op, bool cheap, const Value& value, bool keepable) {
    const bool is_new = ops_.count(&op) == 0;
    const int maker = node(ops_, &op);
    if (is_new) {
      graph_.add_edge(CutGraph::kSource, maker, cheap ? 1 : kCostly);
      for (const auto& input : op.inputs) {
        if (input.value) {
          graph_.add_edge(node_of(input.value.get()), maker, CutGraph::kInfinite);
        }
      }
    }
    graph_.add_edge(maker, node_of(&value), keepable ? price(value.nbytes) : CutGraph::kInfinite);
  }

  // Not made here: free if it is there anyway, else holding it costs its bytes.
  void add_given(const Value& value, bool free) {
    if (!free) {
      graph_.add_edge(CutGraph::kSource, node_of(&value), price(value.nbytes));
    }
  }

  void solve() { sink_ = graph_.sink_side(); }
  bool replays(const Op& op) const { return sink_[ops_.at(&op)]; }
  bool keeps(const Value& value) const {
    return sink_[values_.at(&value)] && !replays(*value.recipe);
  }

 private:
  // More than all bytes of a window, but finite: a value that was overwritten in place and that a
  // recipe reads cannot be kept any more, so what made it is replayed, cheap or not.
  static constexpr int64_t kCostly = int64_t{1} << 56;

  template <typename Map, typename Key>
  int node(Map& map, Key key) {
    const auto [it, is_new] = map.emplace(key, 0);
    if (is_new) {
      it->second = graph_.add_node();
    }
    return it->second;
  }
  int64_t price(size_t bytes) const { return static_cast<int64_t>(bytes) * byte_price_; }

  const int64_t byte_price_;  // bytes first; among equals, the fewest replayed ops
  CutGraph graph_;
  ska::flat_hash_map<const Value*, int> values_;
  ska::flat_hash_map<const Op*, int> ops_;
  std::vector<bool> sink_;
};

}  // namespace

// What no gradient flows through is not held: autograd saves it while it is alive, or never.
void Window::made(Value& value) {
  if (value.differentiable) {
    hold(value);
  }
  held_.push_back(c10::intrusive_ptr<Value>::reclaim_copy(&value));
  frontier_.add(value);
}

void Window::saved(Value& value) {
  ++saved_;
  // A result without gradient (a mask, the mean of a norm): from now on the window holds it, too.
  const bool undecided = !held_.empty() && value.recipe && held_.front()->recipe &&
      value.recipe->order >= held_.front()->recipe->order;
  if (undecided && value.hold == Hold::None && value.in_use_elsewhere()) {
    hold(value);
  }
}

void Window::hold(Value& value) {
  shelf_.keep(value);
  held_bytes_ += value.nbytes;
  region_.counters.window_bytes.raise_to(held_bytes_);
}

void Window::before_op() {
  const size_t most_ops = wrapped_ ? kWrappedOps : held_bytes_ == 0 ? kQuietOps : kMostOps;
  if (saved_ == 0 && held_.size() < most_ops) {
    return;
  }
  const size_t in_use = frontier_.bytes();
  if (held_.size() >= most_ops || (in_use > 0 && held_bytes_ >= kNarrow * in_use)) {
    decide();
  }
}

void Window::settle() {
  frontier_.forget_unused();
  decide();
}

void Window::forget_dead() {
  frontier_.forget_unused();
  const auto is_dead = [&](const auto& value) {
    if (value->needed() || value->in_use_elsewhere()) {
      return false;
    }
    held_bytes_ -= value->hold == Hold::Kept ? value->nbytes : 0;
    return true;
  };
  held_.erase(std::remove_if(held_.begin(), held_.end(), is_dead), held_.end());
  if (held_bytes_ == 0) {
    decide();  // no gradient flows through what is left: nothing will be saved that is not yet
  }
}

void Window::close() {
  frontier_.forget_unused();  // before anything is dropped: that is freed only later
  decide();
  frontier_.clear();
}

bool Window::replays(const Op& op) const {
  return op.info->cheap || rules_.is_named_to_drop(*op.info);
}

void Window::decide() {
  // Some may have become roots since, or were found in their place.
  held_.erase(
      std::remove_if(held_.begin(), held_.end(), [](const auto& value) { return !value->recipe; }),
      held_.end());
  Problem problem(static_cast<int64_t>(held_.size()) + 1);
  ska::flat_hash_map<const Value*, uint32_t> readers_here;
  ska::flat_hash_map<const Op*, bool> seen;
  ska::flat_hash_map<const Value*, bool> here;
  for (const auto& value : held_) {
    here.emplace(value.get(), true);
  }
  for (const auto& value : held_) {
    const Op& op = *value->recipe;
    const bool alive = value->hold == Hold::Kept || value->in_use_elsewhere();
    problem.add_result(op, replays(op), *value, alive && !value->superseded);
    if (!seen.emplace(&op, true).second) {
      continue;
    }
    for (const auto& input : op.inputs) {
      if (!input.value) {
        continue;
      }
      ++readers_here[input.value.get()];
      const Value& given = *input.value;
      if (here.count(&given) == 0 && readers_here[&given] == 1) {
        // Decided earlier, or given: parameters and what is saved anyway cost nothing more.
        problem.add_given(given, given.recipe || given.leaf || given.saved);
      }
    }
  }
  for (const auto& value : held_) {
    const auto readers = readers_here.find(value.get());
    const bool read_elsewhere = value->readers.size() >
        (readers == readers_here.end() ? 0 : readers->second);
    if (value->saved || read_elsewhere) {
      problem.require(value.get());
    }
  }
  problem.solve();

  // In the order of forward: what is not kept can be replayed if all it is made from can be had.
  for (const auto& value : held_) {
    if (problem.keeps(*value)) {
      if (value->hold != Hold::Kept) {
        shelf_.keep(*value);
      }
      shelf_.sever(*value);
      continue;
    }
    const Op& op = *value->recipe;
    const bool replayable = (replays(op) || problem.replays(op)) &&
        std::all_of(op.inputs.begin(), op.inputs.end(), [](const Input& input) {
                              return !input.value || input.value->hold == Hold::Kept ||
                                  input.value->recipe;
                            });
    if (value->hold == Hold::Kept) {
      shelf_.drop(*value);
    }
    if (!replayable) {
      shelf_.sever(*value);
    }
  }
  cut_long_chains();
  frontier_.forget_roots();
  held_.clear();
  held_bytes_ = 0;
  saved_ = 0;
  wrapped_ = false;
}

// What is in use at the end of the window and would be replayed through it from an earlier one is
// kept: replay chains span two windows at most, however long forward is.
void Window::cut_long_chains() {
  ska::flat_hash_map<const Value*, bool> from_before;  // of this window
  for (const auto& value : held_) {
    bool reaches = false;
    if (value->recipe) {
      for (const auto& input : value->recipe->inputs) {
        if (input.value && input.value->hold == Hold::None && input.value->recipe) {
          const auto it = from_before.find(input.value.get());
          reaches |= it == from_before.end() || it->second;
        }
      }
    }
    from_before[value.get()] = reaches;
  }
  frontier_.each([&](Value& value) {
    const auto it = from_before.find(&value);
    if (it != from_before.end() && it->second && value.hold == Hold::None) {
      shelf_.keep(value);
      shelf_.sever(value);
    }
  });
}

}  // namespace retape::detail
