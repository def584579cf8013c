// Recipes must not hold more than autograd would hold without them.
//
// A root that recipes read and that autograd has not saved is held for them alone. It may be larger
// than all that was dropped: a float64 batch of which a float32 copy was saved, a table of which
// some rows were. Then results take the place of roots: the fewest bytes from which all that was
// dropped can be replayed, by an exact min-cut. Holding all that autograd has saved is one of the
// choices, so the sum is never above eager's.
//
// What the caller still holds may die tomorrow, or never. So a root counts even while the caller
// holds it, and a dropped value counts as won only if it is gone: the sum holds whatever the caller
// does.
//
// All of this is weighed when the outermost scope ends. Results of ops that are not replayed (kept
// by name, custom, collective) would pile up until then: a stretch of forward is weighed whenever
// such roots have piled up to a few times the largest of them.
#include "record/recorder.h"

#include "replay/fetch.h"
#include "residency/bytes.h"
#include "tape/min_cut.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <exception>
#include <iterator>

namespace retape::detail {

namespace {

bool may_hold(const Value& value) {
  return value.region->may_hold_results && !value.recipe->obeys && !value.discardable;
}

// Kept for now, with what it would be replayed from: the policy may drop it again.
bool is_tentative(const Value& value) {
  return value.hold == Hold::Kept && value.recipe;
}

// Of `full`. What a window of `cheap` holds is decided when the window is.
bool is_anchor(const Value& value) {
  return is_tentative(value) && value.region->holds_anchors;
}

// Some roots are copied when the scope ends, and a copy keeps the address modulo kAlignment.
size_t cost_of(const Value& root) {
  const bool may_be_copied = root.copied || root.statistic || root.made_here;
  return root.nbytes + (may_be_copied ? root.misalignment : 0);
}

// Which values to hold, as a cut between roots and what autograd will ask for: each value is two
// nodes, and cutting what connects them pays for holding it.
class Problem {
 public:
  explicit Problem(size_t values) : byte_price_(static_cast<int64_t>(values) + 1) {}

  void add_root(const Value& root) {
    graph_.add_edge(CutGraph::kSource, nodes_of(root).after, price(cost_of(root)));
  }

  void add_dropped(const Value& value, bool is_free) {
    const auto nodes = nodes_of(value);
    const auto own = price(is_free ? 0 : value.nbytes);
    graph_.add_edge(nodes.before, nodes.after, may_hold(value) ? own : CutGraph::kInfinite);
    if (value.tokens > 0) {
      graph_.add_edge(nodes.after, CutGraph::kSink, CutGraph::kInfinite);
    }
  }

  void add_use(const Value& of, const Value& by) {
    graph_.add_edge(nodes_of(of).after, nodes_of(by).before, CutGraph::kInfinite);
  }

  void solve() { sink_ = graph_.sink_side(); }

  bool holds(const Value& value) {
    const auto nodes = nodes_of(value);
    return !sink_[static_cast<size_t>(nodes.before)] && sink_[static_cast<size_t>(nodes.after)];
  }

 private:
  struct Nodes {
    int before;
    int after;
  };

  Nodes nodes_of(const Value& value) {
    const auto [it, is_new] = nodes_.emplace(&value, Nodes{});
    if (is_new) {
      it->second.before = graph_.add_node();
      it->second.after = graph_.add_node();
    }
    return it->second;
  }

  // Bytes first; among equals, the fewest values.
  int64_t price(size_t bytes) const { return static_cast<int64_t>(bytes) * byte_price_ + 1; }

  const int64_t byte_price_;
  CutGraph graph_;
  ska::flat_hash_map<const Value*, Nodes> nodes_;
  std::vector<bool> sink_;
};

// Ops that are connected by what they make, and the bytes of each such part. A root is charged to
// every part that reads it: one part's graph may outlive the other's.
class Parts {
 public:
  uint32_t add() {
    const auto place = static_cast<uint32_t>(parents_.size());
    parents_.push_back(place);
    gains_.push_back(0);
    return place;
  }

  void unite(uint32_t a, uint32_t b) {
    a = find(a);
    b = find(b);
    if (a != b) {
      parents_[b] = a;
      gains_[a] += gains_[b];
    }
  }

  void won(uint32_t place, size_t bytes) { gains_[find(place)] += static_cast<int64_t>(bytes); }
  void spent(uint32_t place, size_t bytes) { gains_[find(place)] -= static_cast<int64_t>(bytes); }
  bool has_lost(uint32_t place) { return gains_[find(place)] < 0; }

  uint32_t find(uint32_t place) {
    while (parents_[place] != place) {
      place = parents_[place] = parents_[parents_[place]];
    }
    return place;
  }

 private:
  std::vector<uint32_t> parents_;
  std::vector<int64_t> gains_;
};

}  // namespace

// A graph holds it, as plain autograd would. What only the caller and the tape still hold counts as
// held by a graph that has saved it: that cannot be told apart.
bool Recorder::is_saved_by_a_graph(const Value& value) const {
  if (value.tokens > 0 || value.owned_by_graph) {
    return true;
  }
  const auto given = given_.find(value.home._unsafe_get_target());
  const bool saved = value.saved || (given != given_.end() && !given->second.expired());
  return saved && value.in_use_elsewhere();
}

// By recipes, and not by autograd, whatever becomes of the caller's tensors.
bool Recorder::is_held_for_recipes(const Value& value) const {
  return value.copied || value.statistic || !is_saved_by_a_graph(value);
}

// Whether roots that nothing but recipes holds have piled up since this was last so. Looks at a few
// new ones at a time; one that is still in use elsewhere is looked at once more, then left to the
// end. Under the lock.
bool Recorder::roots_pile_up() {
  constexpr size_t kLookAt = 4;
  constexpr size_t kPile = 4;  // times the largest
  size_t bytes = 0;
  size_t largest = 0;
  std::vector<NewRoot> left;
  for (auto& root : new_roots_) {
    const auto value = root.value.lock();
    if (!value || !is_held_for_recipes(*value)) {
      continue;
    }
    if (!value->in_use_elsewhere()) {
      bytes += value->nbytes;
      largest = std::max(largest, value->nbytes);
    } else if (root.was_in_use) {
      continue;
    } else {
      root.was_in_use = true;
    }
    left.push_back(std::move(root));
  }
  const bool piled_up = bytes >= kPile * largest && bytes > 0;
  if (piled_up) {
    region().counters.window_bytes.raise_to(bytes);
    bytes_in_vain_ += bytes;  // if only values that are gone were made from them
    left.clear();
  }
  new_roots_ = std::move(left);
  new_roots_look_at_ = new_roots_.size() + kLookAt;
  return piled_up;
}

// Looks at each part of the tape by itself: what one has won does not make up for another, whose
// graph may outlive it.
Recorder::Balance Recorder::balance(Weigh weigh) {
  // While forward runs, a root that is in use costs nothing yet, and a saved value that is in use
  // may be kept by autograd's own means: both are looked at once more. Ops that were weighed before
  // are settled.
  const bool so_far = weigh == Weigh::SoFar;
  const uint64_t plan = ++tape_->plans;
  std::vector<Op*> ops;
  Parts parts;
  const auto add = [&](Op& op) {
    if (op.planned != plan) {
      op.planned = plan;
      op.place = parts.add();
      ops.push_back(&op);
    }
    return op.place;
  };
  const auto is_settled = [&](const Op& op) { return so_far && op.weighings >= kWeighings; };
  for (const auto& weak : saved_values_) {
    const auto value = weak.lock();
    if (!value || value->tokens == 0 || !value->recipe || is_settled(*value->recipe)) {
      continue;
    }
    if (value->hold == Hold::None) {
      const bool gone = value->home.expired();
      if (gone || !so_far) {
        parts.won(add(*value->recipe), gone ? value->nbytes : 0);
      } else {
        ++value->recipe->weighings;
      }
    } else if (is_anchor(*value)) {
      add(*value->recipe);
    }
  }
  std::vector<std::pair<Value*, uint32_t>> roots;  // and the op that reads it
  for (size_t i = 0; i < ops.size(); ++i) {
    const uint32_t own = ops[i]->place;
    for (const auto& input : ops[i]->inputs) {
      if (!input.value) {
        continue;
      }
      if (input.value->recipe && (input.value->hold == Hold::None || is_anchor(*input.value))) {
        if (!is_settled(*input.value->recipe)) {
          parts.unite(own, add(*input.value->recipe));
        }
      } else if (is_tentative(*input.value)) {
        continue;
      } else if (
          is_held_for_recipes(*input.value) && !(so_far && input.value->in_use_elsewhere())) {
        roots.emplace_back(input.value.get(), own);
      }
    }
  }
  for (auto& [root, place] : roots) {
    place = parts.find(place);
  }
  std::sort(roots.begin(), roots.end());
  roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
  for (const auto& [root, part] : roots) {
    parts.spent(part, cost_of(*root));
  }
  Balance lost;
  for (auto* op : ops) {
    op->weighings += so_far ? 1 : 0;
    if (parts.has_lost(op->place)) {
      lost.ops.push_back(op);
    }
  }
  for (const auto& [root, part] : roots) {
    if (parts.has_lost(part) && (lost.roots.empty() || lost.roots.back() != root)) {
      lost.roots.push_back(root);
    }
  }
  return lost;
}

// Values that need not be looked at again before the end: their ops were weighed often enough.
void Recorder::put_settled_values_aside() {
  WeakValues open;
  for (auto& weak : saved_values_) {
    const auto value = weak.lock();
    if (value && value->recipe) {
      (value->recipe->weighings < kWeighings ? open : settled_values_).add(*value);
    }
  }
  saved_values_ = std::move(open);
}

std::vector<c10::intrusive_ptr<Value>> Recorder::results_to_hold(const Balance& balance) {
  Problem problem(balance.ops.size() + balance.roots.size());
  for (const auto* root : balance.roots) {
    problem.add_root(*root);
  }
  std::vector<Value*> results;
  for (const auto* op : balance.ops) {
    for (const auto& result : op->results) {
      if (result.value == nullptr || !result.value->needed() ||
          (result.value->hold != Hold::None && !is_anchor(*result.value))) {
        continue;
      }
      results.push_back(result.value);
      const bool is_there = is_anchor(*result.value) ||
          (result.value->tokens > 0 && result.value->in_use_elsewhere());
      problem.add_dropped(*result.value, is_there);
      for (const auto& input : op->inputs) {
        if (input.value) {
          problem.add_use(*input.value, *result.value);
        }
      }
    }
  }
  problem.solve();
  std::vector<c10::intrusive_ptr<Value>> held;
  for (auto* value : results) {
    if (problem.holds(*value)) {
      held.push_back(c10::intrusive_ptr<Value>::reclaim_copy(value));
    }
  }
  std::sort(held.begin(), held.end(), [](const auto& a, const auto& b) {
    return a->recipe->order < b->recipe->order;
  });
  return held;
}

void Recorder::hold_no_more_than_eager(Weigh weigh) {
  std::vector<c10::intrusive_ptr<Value>> held;
  {
    TapeLock lock(*tape_);
    if (weigh == Weigh::AtTheEnd) {
      saved_values_.take(settled_values_);
    }
    if (const auto lost = balance(weigh); !lost.ops.empty()) {
      held = results_to_hold(lost);
    }
    if (weigh == Weigh::SoFar) {
      put_settled_values_aside();
    } else {
      saved_values_.clear();
    }
  }
  for (auto& value : held) {
    {
      TapeLock lock(*tape_);
      if (is_anchor(*value)) {
        sever(*value);
        continue;
      }
      if (value->tokens > 0 && value->in_use_elsewhere() && !value->home_moved()) {
        keep(*value);  // as autograd would: who writes to it now breaks backward in eager, too
        sever(*value);
        continue;
      }
    }
    try {
      const auto brought = bring_back(*tape_, *value, torch::autograd::get_current_graph_task_id());
      const auto own = brought.shared ? copy_of(brought.storage) : brought.storage;
      TapeLock lock(*tape_);
      hold(*value, own);
    } catch (const std::exception&) {
      // It stays dropped: the backward that asks for it meets the same error, and says so.
    }
    value.reset();
  }
  if (weigh == Weigh::SoFar) {
    TapeLock lock(*tape_);
    if (is_worth_a_sweep()) {
      forget_what_is_idle();  // values that are gone still hold what they were made from
    }
  }
}

void Recorder::hold_no_more_than_eager_so_far() {
  // A backward in the scope leaves dead graphs behind. The table is looked through as often as ops
  // make it worth it.
  constexpr size_t kEntriesPerOp = 8;
  if ((had_backward_ || tape_->released.load(std::memory_order_relaxed)) &&
      (order_ - order_of_sweep_) * kEntriesPerOp >= table_.size()) {
    TapeLock lock(*tape_);
    forget_what_is_idle();
  }
  if (new_roots_.size() < new_roots_look_at_ || new_roots_.empty()) {
    return;
  }
  const bool due = [&] {
    TapeLock lock(*tape_);
    return roots_pile_up();
  }();
  if (due) {
    hold_no_more_than_eager(Weigh::SoFar);
  }
}

}  // namespace retape::detail
