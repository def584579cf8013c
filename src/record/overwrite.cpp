// What happens to recipes that read a tensor which is about to be overwritten.
//
// The bytes cannot be replayed, so either they are copied, or what the recipes make of them is held
// in their place, whichever is less. Autograd would hold the second; often it is a slice of a
// cache, or rows of a table.
#include "record/recorder.h"

#include "replay/fetch.h"
#include "tape/fault.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <iterator>

namespace retape::detail {

void Recorder::hold_readers_of(const c10::Storage& storage, const c10::VariableVersion& counter) {
  if (injected(Fault::StaleVersion)) {
    return;  // the fault is in the copy
  }
  std::vector<c10::intrusive_ptr<Value>> gone;  // needed, and no longer there
  {
    TapeLock lock(*tape_);
    const auto root = find(storage, counter);
    if (!root || root->recipe || root->hold != Hold::Kept || root->copied ||
        root->readers.empty()) {
      return;
    }
    forget_idle_readers(*root);
    if (!root->readers.empty()) {
      gone = results_to_hold(*root);
    }
  }
  for (auto& value : gone) {
    if (!value->recipe) {
      continue;
    }
    const auto brought = bring_back(*tape_, *value, torch::autograd::get_current_graph_task_id());
    TapeLock lock(*tape_);
    hold(*value, brought.storage);
    value.reset();
  }
}

// Forgets recipes that read it and that nothing needs: of values that are dead, and of those that
// are alive and through which no gradient flows. Should autograd save one of these, it is kept as
// it is.
void Recorder::forget_idle_readers(Value& root) {
  sever_idle_results(root);
  bytes_in_vain_ += root.nbytes;
  if (root.readers.empty() || !is_worth_a_sweep()) {
    return;
  }
  forget_what_is_idle();
  if (root.readers.empty()) {
    return;
  }
  for (const auto& scope : scopes_) {
    if (scope->decider) {
      scope->decider->settle();
    }
  }
  sweep();
}

// It is alive, and nothing needs its recipe. Under the lock.
bool Recorder::is_idle(const Value& value) {
  return value.recipe && !value.needed() && !value.discardable && value.hold == Hold::None &&
      value.in_use_elsewhere();
}

void Recorder::sever_idle_results(Value& root) {
  constexpr size_t kMostOps = 1024;
  const uint64_t plan = ++tape_->plans;
  std::vector<Op*> ops;
  const auto add_readers = [&](const Value& value) {
    for (const auto& reader : value.readers) {
      if (reader.op->planned != plan && ops.size() < kMostOps) {
        reader.op->planned = plan;
        ops.push_back(reader.op);
      }
    }
  };
  std::vector<c10::intrusive_ptr<Value>> idle;
  add_readers(root);
  for (size_t i = 0; i < ops.size(); ++i) {
    for (const auto& result : ops[i]->results) {
      if (result.value == nullptr) {
        continue;
      }
      const Value& value = *result.value;
      add_readers(value);
      if (is_idle(value) && !value.differentiable) {
        idle.push_back(c10::intrusive_ptr<Value>::reclaim_copy(result.value));
      }
    }
  }
  for (const auto& value : idle) {
    sever(*value);
  }
}

namespace {

// Values that stand between a root and all that is needed of what was made from it.
struct Cut {
  size_t bytes = 0;
  std::vector<c10::intrusive_ptr<Value>> values;

  void add(Cut other) {
    bytes += other.bytes;
    std::move(other.values.begin(), other.values.end(), std::back_inserter(values));
  }
};

Cut cut_behind(c10::ArrayRef<Reader> readers, size_t& looks);

// The value itself, or, where that is less, values further on. Those that autograd has saved are
// needed themselves. `looks`: how many more values may be looked at.
Cut cut_at(Value& value, size_t& looks) {
  Cut own;
  own.bytes = value.needed() && value.hold != Hold::Kept ? value.nbytes : 0;
  own.values.push_back(c10::intrusive_ptr<Value>::reclaim_copy(&value));
  if (value.tokens > 0 || value.readers.empty() || value.discardable || own.bytes == 0 ||
      looks == 0) {
    return own;
  }
  auto further = cut_behind(value.readers, looks);
  return further.bytes < own.bytes ? further : own;
}

Cut cut_behind(c10::ArrayRef<Reader> readers, size_t& looks) {
  Cut cut;
  for (const auto& reader : readers) {
    for (const auto& result : reader.op->results) {
      if (result.value != nullptr) {
        looks -= looks > 0 ? 1 : 0;
        cut.add(cut_at(*result.value, looks));
      }
    }
  }
  return cut;
}

}  // namespace

// Holds results that are still alive, and returns those that must be replayed for it. Does nothing
// where a copy of the root is smaller. Under the lock.
std::vector<c10::intrusive_ptr<Value>> Recorder::results_to_hold(Value& root) {
  size_t looks = 256;
  auto cut = cut_behind(root.readers, looks);
  const bool discardable = std::any_of(
      cut.values.begin(), cut.values.end(), [](const auto& value) { return value->discardable; });
  std::vector<c10::intrusive_ptr<Value>> gone;
  if (cut.bytes > root.nbytes || discardable) {  // who may discard a value counts on its recipe
    return gone;
  }
  for (auto& value : cut.values) {
    if (!value->recipe) {
      continue;  // reached in two ways
    }
    if (!value->needed() && value->home.expired()) {
      forget_current(*value);
    } else if (value->hold == Hold::None && value->needed() && !value->in_use_elsewhere()) {
      gone.push_back(std::move(value));
    } else {
      if (value->hold == Hold::None && value->needed()) {
        keep(*value);
      }
      sever(*value);
    }
  }
  return gone;
}

// `bytes` are what its recipe gives; it needs no recipe any more.
void Recorder::hold(Value& value, c10::Storage bytes) {
  if (value.saved) {
    value.region->counters.values_dropped.subtract(1);
    value.region->counters.bytes_dropped.subtract(value.nbytes);
  }
  forget_current(value);
  value.keep(std::move(bytes));
  value.copied = true;
  sever(value);
}

}  // namespace retape::detail
