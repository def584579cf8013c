#include "replay/fetch.h"

#include "replay/replay_count.h"
#include "residency/bytes.h"
#include "residency/refillable.h"
#include "tape/activity.h"
#include "tape/errors.h"
#include "tape/fault.h"
#include "tape/region.h"
#include "torch/interceptor.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <chrono>

namespace retape::detail {

namespace {

// Replay runs below autograd and autocast, and outside of the function transforms that a backward
// may run in (vmap over backward, is_grads_batched): forward ran outside of them.
constexpr c10::DispatchKeySet kNotInReplay = c10::autograd_dispatch_keyset_with_ADInplaceOrView |
    c10::autocast_dispatch_keyset | c10::functorch_transforms_ks |
    c10::DispatchKeySet(
                                                 {c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                                  c10::DispatchKey::FuncTorchDynamicLayerBackMode,
                                                  c10::DispatchKey::Functionalize});

// It ran in this pass, but what it made is needed once more: so is what it is made from.
void unsatisfy(Op& op, int pass) {
  if (op.satisfied != pass) {
    return;
  }
  op.satisfied = Value::kNoPass;
  for (const auto& input : op.inputs) {
    if (input.value && input.value->pass == pass) {
      --input.value->done;
    }
  }
}

// Ops that must run, in forward's order, so that `value` is there. Under the lock.
std::vector<c10::intrusive_ptr<Op>> ops_needed(Tape& tape, Value& value, int pass) {
  const uint64_t plan = ++tape.plans;
  std::vector<c10::intrusive_ptr<Op>> needed{value.recipe};
  value.recipe->planned = plan;
  for (size_t i = 0; i < needed.size(); ++i) {
    unsatisfy(*needed[i], pass);
    for (const auto& input : needed[i]->inputs) {
      if (!input.value || input.value->here()) {
        continue;
      }
      const auto& recipe = input.value->recipe;
      if (recipe->planned != plan) {
        recipe->planned = plan;
        needed.push_back(recipe);
      }
    }
  }
  std::sort(needed.begin(), needed.end(), [](const auto& a, const auto& b) {
    return a->order < b->order;
  });
  return needed;
}

// Under the lock.
void give_up_after_pass(Tape& tape, Value& value, int pass) {
  if (!tape.replayed || tape.replayed_in != pass) {
    tape.replayed = std::make_shared<Tape::Replayed>();
    tape.replayed_in = pass;
    torch::autograd::Engine::get_default_engine().queue_callback(
        [tape = c10::intrusive_ptr<Tape>::reclaim_copy(&tape), replayed = tape.replayed] {
          TapeLock lock(*tape);
          for (const auto& weak : *replayed) {
            if (const auto value = weak.lock(); value && value->hold == Hold::Replayed) {
              value->drop();
            }
          }
          if (tape->replayed == replayed) {
            tape->replayed.reset();
          }
        });
  }
  tape.replayed->emplace_back(c10::intrusive_ptr<Value>::reclaim_copy(&value));
}

// A replay outside of any pass: nobody but itself wants what it makes on the way. Under the lock.
class Errand {
 public:
  void plan(const std::vector<c10::intrusive_ptr<Op>>& ops) {
    uses_.clear();
    for (const auto& op : ops) {
      for (const auto& input : op->inputs) {
        if (input.value) {
          ++uses_[input.value.get()];
        }
      }
    }
  }

  bool wants(const Value& value) const { return uses_.count(&value) > 0; }
  void hold(Value& value) {
    held_.emplace(&value, c10::intrusive_ptr<Value>::reclaim_copy(&value));
  }

  void used_by(const Op& op) {
    for (const auto& input : op.inputs) {
      if (input.value && --uses_[input.value.get()] == 0) {
        uses_.erase(input.value.get());
        let_go(*input.value);
      }
    }
  }

  bool empty() const { return held_.empty(); }
  void let_go_of_all() {
    for (auto& [key, value] : held_) {
      drop(*value);
    }
    held_.clear();
  }

 private:
  static void drop(Value& value) {
    if (value.hold == Hold::Replayed) {
      value.drop();
    }
  }
  void let_go(Value& value) {
    if (const auto it = held_.find(&value); it != held_.end()) {
      drop(value);
      held_.erase(it);
    }
  }

  ska::flat_hash_map<const Value*, uint32_t> uses_;  // that are still to come
  ska::flat_hash_map<const Value*, c10::intrusive_ptr<Value>> held_;
};

// One run of one op. `stack` is borrowed so that a run of ops needs one.
class Run {
 public:
  Run(Tape& tape, Op& op, int pass, torch::jit::Stack& stack)
      : tape_(tape),
        op_(op),
        pass_(pass),
        stack_(stack) {}

  // False if an input is gone again (another thread used it up): plan anew.
  bool take_inputs();
  void execute();
  void publish(Errand* errand);  // null: in a pass
  c10::Storage result(const Value& value) const;

 private:
  c10::Storage source_of(const Result& result) const;
  void own_written_inputs();
  void push_arguments();

  Tape& tape_;
  Op& op_;
  int pass_;
  torch::jit::Stack& stack_;
  c10::SmallVector<c10::Storage, 3> inputs_;
  c10::SmallVector<bool, 3> stolen_;
  c10::SmallVector<at::Tensor, 4> outputs_;
};

// The op's own inputs are all the uses that are still to come, so it may write where they are.
bool last_use(const Op& op, const Value& value, int pass) {
  uint32_t own = 0;
  for (const auto& input : op.inputs) {
    own += input.value.get() == &value ? 1 : 0;
  }
  return value.hold == Hold::Replayed && !value.lent &&
      value.tokens + value.readers.size() == own + (value.pass == pass ? value.done : 0);
}

bool Run::take_inputs() {
  TapeLock lock(tape_);
  inputs_.clear();
  stolen_.assign(op_.inputs.size(), false);
  for (const auto& input : op_.inputs) {
    c10::Storage storage;
    if (input.value) {
      storage = input.value->here();
      if (!storage) {
        return false;
      }
    }
    inputs_.push_back(std::move(storage));
  }
  for (size_t i = 0; i < op_.inputs.size(); ++i) {
    const auto& input = op_.inputs[i];
    stolen_[i] = input.role == Role::Write && last_use(op_, *input.value, pass_);
    if (injected(Fault::ThreadRace) && input.role == Role::Write && !stolen_[i] &&
        input.value->hold == Hold::Replayed) {
      stolen_[i] = true;
      hit();
      return true;
    }
  }
  for (size_t i = 0; i < op_.inputs.size(); ++i) {
    if (stolen_[i]) {
      op_.inputs[i].value->drop();
    }
  }
  return true;
}

// Memory that the op writes is its own: a copy of the version before, or memory of that size. An
// argument that looks at the same storage looks at the copy.
void Run::own_written_inputs() {
  for (size_t i = 0; i < op_.inputs.size(); ++i) {
    const auto& input = op_.inputs[i];
    if (injected(Fault::BatchNormTwice) && input.role == Role::Scratch && input.value) {
      hit();
    } else if (input.role == Role::Fresh || input.role == Role::Scratch) {
      inputs_[i] = uninitialized(input.device, input.nbytes, input.misalignment);
    } else if (input.role == Role::Write && !stolen_[i]) {
      const auto before = inputs_[i];
      const auto copy = copy_of(before);
      for (size_t j = 0; j < inputs_.size(); ++j) {
        if (inputs_[j].is_alias_of(before)) {
          inputs_[j] = copy;
          stolen_[j] = true;
        }
      }
    }
  }
}

void Run::push_arguments() {
  stack_.assign(op_.args.begin(), op_.args.end());
  for (const auto& list : op_.lists) {
    if (list.optional) {
      c10::List<std::optional<at::Tensor>> tensors;
      tensors.resize(list.size);
      stack_[list.arg] = std::move(tensors);
    } else {
      c10::List<at::Tensor> tensors;
      tensors.resize(list.size);
      stack_[list.arg] = std::move(tensors);
    }
  }
  for (size_t i = 0; i < op_.inputs.size(); ++i) {
    const auto& input = op_.inputs[i];
    auto tensor = input.view.on(inputs_[i]);
    if (input.view.requires_grad() && !op_.info->pointwise) {
      tensor.set_requires_grad(true);  // kernels that call matmul choose by it
    }
    if (input.element < 0) {
      stack_[input.arg] = std::move(tensor);
    } else if (stack_[input.arg].isOptionalTensorList()) {
      stack_[input.arg].toOptionalTensorList().set(input.element, std::move(tensor));
    } else {
      stack_[input.arg].toTensorList().set(input.element, std::move(tensor));
    }
  }
  if (op_.draw && op_.info->generator_arg >= 0 && !injected(Fault::GeneratorNotRestored)) {
    stack_[op_.info->generator_arg] = op_.draw->fresh();
  }
}

void Run::execute() {
  if (op_.info->gone->load(std::memory_order_relaxed)) {
    throw_op_gone(op_);
  }
  for (const auto& storage : inputs_) {
    fill(storage);
  }
  own_written_inputs();
  push_arguments();
  {
    std::optional<Draw::Rewind> rewind;
    if (op_.draw && op_.info->generator_arg < 0 && !injected(Fault::GeneratorNotRestored)) {
      rewind.emplace(*op_.draw);
    }
    ReplayCall call{op_, op_.info, stack_, inputs_};
    if (!tape_.observers.empty()) {
      TapeLock lock(tape_);
      for (const auto& observer : tape_.observers) {
        observer->before_replay(call);
      }
    }
    call.called->handle.callBoxed(&stack_);
  }
  outputs_.clear();
  for (auto& value : stack_) {
    if (value.isTensor()) {
      outputs_.push_back(std::move(value).toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) {
        outputs_.push_back(tensor);
      }
    }
  }
  for (const auto& observer : tape_.observers) {
    observer->after_replay(op_, outputs_);
  }
}

c10::Storage Run::source_of(const Result& result) const {
  return result.source >= 0 ? outputs_[result.source].storage() : inputs_[-result.source - 1];
}

c10::Storage Run::result(const Value& value) const {
  return source_of(op_.results[value.slot]);
}

void Run::publish(Errand* errand) {
  TapeLock lock(tape_);
  op_.region->counters.ops_replayed.add(1);
  count_replayed(1);
  for (const auto& result : op_.results) {
    if (result.value == nullptr) {
      continue;
    }
    Value& value = *result.value;
    auto storage = source_of(result);
    if (storage.nbytes() != value.nbytes) {
      throw_other_size(op_, value.nbytes, storage.nbytes());
    }
    if (misalignment_of(*storage.unsafeGetStorageImpl()) != value.misalignment) {
      storage = copy_of(storage, value.misalignment);
      outputs_[result.source] =
          View(outputs_[result.source]).on(storage);  // written inputs are aligned
    }
    for (const auto& observer : tape_.observers) {
      observer->replayed(tape_, op_, value, storage);
    }
    if (value.hold == Hold::None &&
        (errand != nullptr ? errand->wants(value) : value.wanted(pass_))) {
      value.data = std::move(storage);
      value.hold = Hold::Replayed;
      for (const auto& observer : tape_.observers) {
        observer->held(value);
      }
      if (errand != nullptr) {
        errand->hold(value);
      } else {
        give_up_after_pass(tape_, value, pass_);
      }
    }
  }
  if (errand != nullptr) {
    errand->used_by(op_);
  }
  if (op_.satisfied != pass_ && pass_ >= 0) {
    op_.satisfied = pass_;
    for (const auto& input : op_.inputs) {
      if (input.value) {
        consume(*input.value, pass_);
      }
    }
  }
}

// What one replay works with. Whatever happens, it is let go of under the lock, and what it brought
// back for nobody but itself is dropped.
struct Work {
  explicit Work(Tape& tape) : tape(tape) {}
  ~Work() {
    if (plan.empty() && errand.empty()) {
      return;
    }
    TapeLock lock(tape);
    plan.clear();
    errand.let_go_of_all();
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  Tape& tape;
  std::vector<c10::intrusive_ptr<Op>> plan;
  Errand errand;
};

// Times a replay for the region whose value was asked for. A replay that another one needs on the
// same thread is part of that one's time.
class Stopwatch {
 public:
  Stopwatch(Tape& tape, Region& region)
      : tape_(tape),
        region_(region.timed && !Activity::of_this_thread().replays ? &region : nullptr) {
    if (region_ != nullptr) {
      start_ = Clock::now();
    }
  }
  ~Stopwatch() {
    if (region_ != nullptr) {
      const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_);
      TapeLock lock(tape_);
      region_->counters.replay_ns.add(time.count());
    }
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  Tape& tape_;
  Region* region_;
  Clock::time_point start_;
};

std::vector<c10::Storage> roots_that_are_discarded(Tape& tape, Value& value) {
  std::vector<c10::Storage> roots;
  TapeLock lock(tape);
  if (value.here()) {
    return roots;
  }
  const uint64_t plan = ++tape.plans;
  std::vector<Op*> needed{value.recipe.get()};
  for (size_t i = 0; i < needed.size(); ++i) {
    needed[i]->planned = plan;
    for (const auto& input : needed[i]->inputs) {
      if (!input.value) {
        continue;
      }
      if (auto storage = input.value->here()) {
        if (is_emptied(storage.unsafeGetStorageImpl())) {
          roots.push_back(std::move(storage));
        }
      } else if (input.value->recipe->planned != plan) {
        input.value->recipe->planned = plan;
        needed.push_back(input.value->recipe.get());
      }
    }
  }
  return roots;
}

Brought brought_back(Tape& tape, Value& value, int pass) {
  Work work(tape);
  c10::Storage storage;
  // Planned anew when another thread has used up an input meanwhile. That ends when its pass does.
  for (int attempt = 0; !storage; ++attempt) {
    TORCH_INTERNAL_ASSERT(
        attempt < 1000, "retape: replay of ", value.recipe->info->name.name, " makes no progress");
    {
      TapeLock lock(tape);
      work.plan.clear();
      if (auto here = value.here()) {
        return {here, value.hold != Hold::Replayed};
      }
      work.plan = ops_needed(tape, value, pass);
      if (pass < 0) {
        work.errand.plan(work.plan);
      }
    }
    Stopwatch stopwatch(tape, *value.recipe->region);
    Replaying replaying;
    c10::impl::ExcludeDispatchKeyGuard below(kNotInReplay);
    NotIntercepted past_the_tape;
    std::optional<FlagsGuard> flags;
    const Flags* set = nullptr;
    torch::jit::Stack stack;
    for (const auto& op : work.plan) {
      if (op->flags != set) {
        set = op->flags;
        flags.emplace(*set);
      }
      replaying.in(op->region->name);
      const ReplayedOp named(op->info->name.name);
      Run run(tape, *op, pass, stack);
      if (!run.take_inputs()) {
        break;
      }
      run.execute();
      run.publish(pass < 0 ? &work.errand : nullptr);
      if (op == value.recipe) {
        storage = run.result(value);
      }
    }
  }
  return {storage, false};
}

// Errors that arise under the lock are raised without it.
template <typename Function>
auto raising(const Function& function) {
  try {
    return function();
  } catch (const ReplayMismatch& error) {
    raise(error);
  }
}

}  // namespace

void consume(Value& value, int pass) {
  if (value.pass != pass) {
    value.pass = pass;
    value.done = 0;
  }
  ++value.done;
  settle(value, pass);
}

std::vector<c10::Storage> discarded_roots(Tape& tape, Value& value) {
  return raising([&] { return roots_that_are_discarded(tape, value); });
}

Brought bring_back(Tape& tape, Value& value, int pass) {
  return raising([&] { return brought_back(tape, value, pass); });
}

}  // namespace retape::detail
