// How the recorder takes one op: its arguments before it runs, and what it has made when it has
// ended.
#include "record/recorder.h"

#include "record/token.h"
#include "residency/bytes.h"
#include "tape/each_tensor.h"
#include "tape/fault.h"

#include <algorithm>
#include <deque>
#include <mutex>

namespace retape::detail {

namespace {

// Few distinct ones ever exist; ops point at them for as long as graphs live.
const Flags* interned(const Flags& flags) {
  static std::mutex mutex;
  static auto* all = new std::deque<Flags>;
  std::lock_guard<std::mutex> lock(mutex);
  for (const auto& known : *all) {
    if (known == flags) {
      return &known;
    }
  }
  return &all->emplace_back(flags);
}

// Calls `visit` with each tensor that the op writes.
template <typename Visit>
void each_written(const OpInfo& info, const torch::jit::Stack& stack, Visit&& visit) {
  const auto args = torch::jit::last(stack, info.arguments);
  for (size_t i = 0; i < args.size(); ++i) {
    if (effect_on(info, args, i) != Effect::Reads) {
      each_tensor(args[i], [&](const at::Tensor& tensor, int) {
        if (tensor.defined() && is_plain(tensor)) {
          visit(tensor);
        }
      });
    }
  }
}

std::vector<at::Tensor> tensors_of(const OpInfo& info, const torch::jit::Stack& stack) {
  std::vector<at::Tensor> tensors;
  for (const auto& arg : torch::jit::last(stack, info.arguments)) {
    each_tensor(arg, [&](const at::Tensor& tensor, int) {
      if (tensor.defined() && is_plain(tensor)) {
        tensors.push_back(tensor);
      }
    });
  }
  return tensors;
}

}  // namespace

bool Recorder::Flight::touches(const c10::StorageImpl* storage) const {
  return std::find(touched.begin(), touched.end(), storage) != touched.end();
}

bool Recorder::Flight::writes_to(const c10::StorageImpl* storage) const {
  return std::any_of(writes.begin(), writes.end(), [&](const Written& written) {
    return written.storage.unsafeGetStorageImpl() == storage;
  });
}

bool Recorder::Flight::may_make(const c10::StorageImpl* storage) const {
  return info != nullptr && (writes_to(storage) || !touches(storage));
}

// Keeping it holds fewer bytes than keeping what it was picked from, unless that is there anyway.
bool Recorder::Flight::is_small_pick(const at::Tensor& result) const {
  if (!op || !info->picks) {
    return false;
  }
  const auto& source = op->inputs.front();
  return result.storage().nbytes() < source.nbytes && !source.value->leaf;
}

// The first observer that leaves a note has the place.
template <typename Ask>
void Recorder::leave_note(std::unique_ptr<Note>& place, Ask&& ask) const {
  for (const auto& observer : tape_->observers) {
    if (auto note = ask(*observer)) {
      TORCH_INTERNAL_ASSERT(!place, "retape: two observers of one tape leave notes");
      place = std::move(note);
    }
  }
}

void Recorder::run(
    const c10::OperatorHandle& handle,
    const OpInfo& info,
    c10::DispatchKeySet below,
    torch::jit::Stack* stack) {
  Flight flight;
  flight_ = &flight;
  struct Landing {  // whatever happens, the thread is between ops again
    Recorder& recorder;
    ~Landing() { recorder.flight_ = nullptr; }
  } landing{*this};

  hold_no_more_than_eager_so_far();
  const auto& rules = *scope().rules;
  const auto birth = rules.birth(info);
  const auto question = rules.question(info, *stack);
  const bool recorded = info.has_recipe && birth != Birth::Keep;
  if (!recorded && !info.uninitialized && !info.changes_arguments() && !scope().decider) {
    handle.redispatchBoxed(below, stack);  // its results are roots, found when somebody reads them
    note_results_made_here(info, *stack);
    if (info.is_custom) {
      note_opaque(info, *stack);
    }
    if (question) {
      question->ask(region().name, *stack);
    }
    return;
  }
  flight.info = &info;
  std::unique_ptr<Draw> draw;
  if (recorded) {
    flight.op = c10::make_intrusive<Op>();
    if (info.random) {
      draw = Draw::before(info, torch::jit::last(*stack, info.arguments));
    }
  }
  c10::SmallVector<Made, 2> made;
  if (info.changes_arguments()) {
    each_written(info, *stack, [&](const at::Tensor& tensor) {
      hold_readers_of(tensor.storage(), tensor.unsafeGetTensorImpl()->version_counter());
    });
  }
  try {
    prepare(flight, *stack, birth);
    if (flight.op && !tape_->observers.empty()) {
      flight.unwritten = left_unwritten(info, torch::jit::last(*stack, info.arguments));
      leave_note(flight.op->note, [&](TapeObserver& observer) {
        return observer.before_op(info, *stack);
      });
    }
    const auto rebound = info.rebinds ? tensors_of(info, *stack) : std::vector<at::Tensor>();
    handle.redispatchBoxed(below, stack);
    for (const auto& tensor : rebound) {
      note_rebound(rebound.front(), tensor);
    }
    if (info.is_custom && !info.has_recipe) {
      note_opaque(info, *stack);
    }
    made = made_by(flight, *stack);
    if (flight.op && !tape_->observers.empty()) {
      show_observers(flight, made);
    }
    if (question) {
      const bool keep = question->ask(region().name, *stack) == Decision::Keep && flight.op;
      std::for_each(made.begin(), made.end(), [&](Made& item) { item.keep |= keep; });
    } else if (flight.op && birth == Birth::Ask) {
      ask(flight, made);  // without the lock: a user's function may run anything
    }
  } catch (...) {
    abandon(flight);
    throw;
  }
  if (flight.op && draw && draw->moved()) {
    flight.op->draw = std::move(draw);
  }
  finish(flight, made);
}

void Recorder::pass_in_backward(
    const c10::OperatorHandle& handle,
    const OpInfo& info,
    c10::DispatchKeySet below,
    torch::jit::Stack* stack) {
  had_backward_ = true;
  const auto question = scope().rules->question(info, *stack);
  if (info.changes_arguments()) {
    each_written(info, *stack, [&](const at::Tensor& tensor) { about_to_write(tensor); });
  }
  handle.redispatchBoxed(below, stack);
  if (question) {
    question->ask(region().name, *stack);  // nothing is saved here, whatever it answers
  }
  if (!info.makes_nothing() && !info.changes_arguments()) {
    note_results_made_here(info, *stack);
  }
}

// Nothing records them: who reads one finds a root.
void Recorder::note_results_made_here(const OpInfo& info, const torch::jit::Stack& stack) {
  for (const auto& result : torch::jit::last(stack, info.returns)) {
    each_tensor(result, [&](const at::Tensor& tensor, int) {
      if (tensor.defined() && is_plain(tensor)) {
        made_here_[tensor.storage()];
      }
    });
  }
}

void Recorder::pass(
    const c10::OperatorHandle& handle,
    const OpInfo& info,
    c10::DispatchKeySet below,
    torch::jit::Stack* stack) {
  const auto question = scope().rules->question(info, *stack);
  handle.redispatchBoxed(below, stack);
  if (info.lifts) {
    note_results_made_here(info, *stack);
  }
  if (question) {
    question->ask(region().name, *stack);
  }
}

void Recorder::prepare(Flight& flight, const torch::jit::Stack& stack, Birth birth) {
  const OpInfo& info = *flight.info;
  const auto args = torch::jit::last(stack, info.arguments);
  if (flight.op) {
    const auto flags = Flags::now(info.cheap ? flags_ : nullptr);
    if (flags_ == nullptr || !(*flags_ == flags)) {
      flags_ = interned(flags);
    }
    flight.op->info = &info;
    flight.op->region = scope().region;
    flight.op->flags = flags_;
    flight.op->order = order_++;
    flight.op->obeys = birth == Birth::Obey;
  }

  TapeLock lock(*tape_);
  if (scope().decider) {
    scope().decider->before_op();
  }
  for (size_t i = 0; i < args.size(); ++i) {
    const auto effect = info.changes_arguments() ? effect_on(info, args, i) : Effect::Reads;
    bool taken = false;
    each_tensor(args[i], [&](const at::Tensor& tensor, int element) {
      if (tensor.defined()) {
        taken = true;
        take(flight, tensor, i, element, effect);
      }
    });
    if (!flight.op) {
      continue;
    }
    if (args[i].isTensorList()) {
      flight.op->lists.push_back(
          {static_cast<uint16_t>(i), static_cast<uint32_t>(args[i].toListRef().size()), false});
      taken = true;
    } else if (args[i].isOptionalTensorList()) {
      flight.op->lists.push_back(
          {static_cast<uint16_t>(i), static_cast<uint32_t>(args[i].toListRef().size()), true});
      taken = true;
    }
    flight.op->args.push_back(taken ? c10::IValue() : args[i]);
  }
  settle_aliases(flight);
  save_what_is_overwritten(flight);
}

void Recorder::take(
    Flight& flight, const at::Tensor& tensor, size_t arg, int element, Effect effect) {
  if (!is_plain(tensor)) {
    flight.op.reset();
    return;
  }
  const auto& storage = tensor.storage();
  flight.touched.push_back(storage.unsafeGetStorageImpl());
  const bool is_mask = tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
  if ((flight.info->on_cpu_only && !tensor.is_cpu()) || (flight.info->picks && is_mask)) {
    flight.op.reset();
  }
  const Role role = effect == Effect::Reads ? Role::Read : take_written(flight, tensor, effect);
  if (!flight.op) {
    return;
  }
  c10::intrusive_ptr<Value> value;
  if (role == Role::Read || role == Role::Write) {
    value = find_or_root(tensor);
  } else if (role == Role::Scratch && injected(Fault::BatchNormTwice)) {
    value = describe(storage, tensor.unsafeGetTensorImpl()->version_counter());
    value->keep(storage);
    value->copied = true;  // whatever is written there: the fault is that replay writes to it
  }
  Input& input = flight.op->add_input(std::move(value), tensor);
  input.nbytes = storage.nbytes();
  input.misalignment = misalignment_of(*storage.unsafeGetStorageImpl());
  input.device = storage.device_type();
  input.arg = static_cast<uint16_t>(arg);
  input.element = element;
  input.role = role;
}

Role Recorder::take_written(Flight& flight, const at::Tensor& tensor, Effect effect) {
  const auto& storage = tensor.storage();
  auto& written = note_write(flight, storage, tensor.unsafeGetTensorImpl()->version_counter());
  const auto& before = written.before;
  auto role = effect == Effect::UpdatesInForward ? Role::Scratch : Role::Write;
  if (flight.op && role == Role::Write) {
    // What was given stays where it is: its next version is a root and costs nothing more. If this
    // one is needed, and so copied, and only a slice is written, then the next one is made from the
    // copy.
    const bool is_slice = 2 * tensor.nbytes() <= storage.nbytes();
    const bool known = before &&
        (before->uninitialized ||
         (before->given ? is_slice && before->needed() : before->recipe != nullptr));
    if (known && effect == Effect::Overwrites && View(tensor).covers(storage.nbytes())) {
      role = Role::Fresh;
    } else if (!known || before->uninitialized) {
      flight.op.reset();
    }
    if (flight.op) {
      written.input = static_cast<int>(flight.op->inputs.size());
    }
  }
  note_writes_to_the_same_memory(flight, storage);
  return role;
}

Recorder::Written& Recorder::note_write(
    Flight& flight, const c10::Storage& storage, const c10::VariableVersion& counter) {
  return flight.writes.emplace_back(Written{storage, counter, find(storage, counter)});
}

void Recorder::note_writes_to_the_same_memory(Flight& flight, const c10::Storage& storage) {
  for (const auto& other : on_the_same_memory(storage)) {
    if (const auto it = table_.find(other.unsafeGetStorageImpl()); it != table_.end()) {
      flight.writes.push_back({other, c10::VariableVersion(), it->second.get()});
      flight.op.reset();  // what it reads and what it writes may be the same bytes
    }
  }
}

// An op that overwrites a storage it also reads does read it.
void Recorder::settle_aliases(Flight& flight) {
  if (!flight.op) {
    return;
  }
  for (const auto& written : flight.writes) {
    const auto* storage = written.storage.unsafeGetStorageImpl();
    if (written.input < 0 || flight.op->inputs[written.input].role != Role::Fresh ||
        std::count(flight.touched.begin(), flight.touched.end(), storage) == 1) {
      continue;
    }
    if (!written.before->recipe) {
      flight.op.reset();
      return;
    }
    flight.op->inputs[written.input].role = Role::Write;
    flight.op->read(static_cast<uint32_t>(written.input), written.before);
  }
}

// Recipes read the old version: if it cannot be replayed, it is copied before it goes.
void Recorder::save_what_is_overwritten(Flight& flight) {
  for (auto& written : flight.writes) {
    if (!written.before || written.before->hold != Hold::Kept || written.before->copied) {
      continue;
    }
    Value& before = *written.before;
    if (before.recipe) {
      drop(before);
    } else if (!before.readers.empty()) {
      if (!injected(Fault::StaleVersion)) {
        before.data = copy_of(written.storage);
      }
      before.copied = true;
    }
  }
}

c10::SmallVector<Recorder::Made, 2> Recorder::made_by(
    const Flight& flight, const torch::jit::Stack& stack) const {
  c10::SmallVector<Made, 2> made;
  const OpInfo& info = *flight.info;
  const bool recorded = flight.op || info.uninitialized;
  c10::SmallVector<const c10::StorageImpl*, 4> seen;
  int32_t index = 0;
  for (const auto& result : torch::jit::last(stack, info.returns)) {
    each_tensor(result, [&](const at::Tensor& tensor, int) {
      const int32_t source = index++;
      if (!tensor.defined() || !is_plain(tensor)) {
        return;
      }
      const auto* storage = tensor.storage().unsafeGetStorageImpl();
      const bool routing = info.routes && !tensor.is_floating_point() && !tensor.is_complex();
      if (flight.touches(storage) || std::find(seen.begin(), seen.end(), storage) != seen.end()) {
        return;
      }
      seen.push_back(storage);
      const bool keep = !recorded || routing || flight.is_small_pick(tensor);
      made.push_back({tensor, 0, source, keep});
    });
  }
  for (size_t i = 0; i < flight.writes.size(); ++i) {
    const auto& written = flight.writes[i];
    const auto* storage = written.storage.unsafeGetStorageImpl();
    if (flight.op && written.input >= 0 &&
        std::find(seen.begin(), seen.end(), storage) == seen.end()) {
      seen.push_back(storage);
      made.push_back({at::Tensor(), i, -written.input - 1});
    }
  }
  return made;
}

void Recorder::ask(const Flight& flight, c10::SmallVectorImpl<Made>& made) const {
  size_t output = 0;
  for (auto& item : made) {
    if (item.keep) {
      continue;
    }
    const View view = item.tensor.defined()
        ? View(item.tensor)
        : flight.op->inputs[flight.writes[item.write].input].view;
    const auto& storage = item.tensor.defined() ? item.tensor.storage()
                                                : flight.writes[item.write].storage;
    const ValueInfo info{
        flight.info->name.name,
        flight.info->name.overload_name,
        region().name,
        view.sizes(),
        view.dtype(),
        storage.nbytes(),
        output++,
        flight.info->cheap};
    item.keep = scope().rules->decide(info) == Decision::Keep;
  }
}

void Recorder::show_observers(const Flight& flight, c10::SmallVectorImpl<Made>& made) const {
  for (auto& item : made) {
    if (item.keep) {
      continue;
    }
    if (item.tensor.defined()) {
      leave_note(item.note, [&](TapeObserver& observer) { return observer.made(item.tensor); });
      continue;
    }
    const auto& written = flight.writes[item.write];
    const auto& input = flight.op->inputs[written.input];
    if (input.arg != flight.unwritten) {
      const auto* before = written.before ? written.before->note.get() : nullptr;
      leave_note(item.note, [&](TapeObserver& observer) {
        return observer.wrote(written.storage, input.view, before);
      });
    }
  }
}

void Recorder::finish(Flight& flight, c10::SmallVectorImpl<Made>& made) {
  TapeLock lock(*tape_);
  for (const auto& written : flight.writes) {
    supersede(flight, written);
  }
  for (auto& item : made) {
    if (!item.keep) {
      enter(flight, item);
    } else if (item.tensor.defined()) {
      made_here_[item.tensor.storage()];
    } else if (const auto& before = flight.writes[item.write].before) {
      note_made_here(*before);
    }
  }
  if (flight.op && !flight.op->results.empty()) {
    region().counters.ops_recorded.add(1);
  }
  bind_waiting(flight);
  flight.op.reset();
  flight.writes.clear();
}

void Recorder::enter(Flight& flight, Made& made) {
  const auto& storage = made.tensor.defined() ? made.tensor.storage()
                                              : flight.writes[made.write].storage;
  const auto& counter = made.tensor.defined() ? made.tensor.unsafeGetTensorImpl()->version_counter()
                                              : flight.writes[made.write].counter;
  auto value = describe(storage, counter);
  if (made.tensor.defined() && value->versions.empty()) {
    value->origin = made.tensor.getIntrusivePtr();
  }
  if (!made.tensor.defined()) {
    const auto& before = flight.writes[made.write].before;
    value->given = before && before->given;
  }
  value->differentiable = made.tensor.defined()
      ? made.tensor.requires_grad()
      : flight.op && flight.op->inputs[flight.writes[made.write].input].view.requires_grad();
  if (flight.op) {
    value->slot = static_cast<uint32_t>(flight.op->results.size());
    value->recipe = flight.op;
    flight.op->results.push_back({value.get(), made.source});
    value->note = std::move(made.note);
    for (const auto& observer : tape_->observers) {
      observer->entered(*flight.op, *value);
    }
  } else {
    value->uninitialized = true;
  }
  set_current(storage.unsafeGetStorageImpl(), value);
  if (flight.op && scope().decider) {
    scope().decider->made(*value);
  }
}

// The storage holds a new version, with a recipe or without.
void Recorder::supersede(const Flight& flight, const Written& written) {
  if (written.before) {
    Value& before = *written.before;
    before.superseded = true;
    if (before.tokens > 0) {
      before.alias = written.storage;  // autograd would hold it too
    }
    const bool has_recipe = flight.op && written.input >= 0;
    if (!has_recipe) {
      note_made_here(before);
    }
  }
  table_.erase(written.storage.unsafeGetStorageImpl());
  if (!written.before || written.before->given) {
    GivenWrites::note(written.storage.getWeakStorageImpl());
  }
}

// `tensor` looks at the storage of `other` since set_, with a counter of its own.
void Recorder::note_rebound(const at::Tensor& tensor, const at::Tensor& other) {
  const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
  const auto& others = other.unsafeGetTensorImpl()->version_counter();
  if (!tensor.is_same(other) && tensor.is_alias_of(other) && !same_counter(counter, others)) {
    TapeLock lock(*tape_);
    remember_aliases(tensor.storage(), {counter, others});
    find(tensor.storage(), counter);  // what is known of it watches both
  }
}

void Recorder::adopt_version(const at::Tensor& tensor, bool rebound) {
  if (is_plain(tensor)) {
    TapeLock lock(*tape_);
    const auto it = table_.find(tensor.storage().unsafeGetStorageImpl());
    const auto value = it == table_.end() ? c10::intrusive_ptr<Value>() : it->second.get();
    if (!value || value->home._unsafe_get_target() != it->first) {
      return;
    }
    const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
    if (rebound) {
      value->versions.watch_anew(counter);
    } else if (value->versions.empty()) {
      value->versions.watch(counter);
    }
  }
}

void Recorder::about_to_write(const at::Tensor& tensor) {
  if (is_plain(tensor)) {
    about_to_write(tensor.storage(), tensor.unsafeGetTensorImpl()->version_counter());
  }
}

// Something that the tape does not see is about to write to it. Recipes read the version before.
void Recorder::about_to_write(const c10::Storage& storage, const c10::VariableVersion& counter) {
  hold_readers_of(storage, counter);
  TapeLock lock(*tape_);
  Flight flight;
  note_write(flight, storage, counter);
  note_writes_to_the_same_memory(flight, storage);
  save_what_is_overwritten(flight);
  for (const auto& written : flight.writes) {
    supersede(flight, written);
  }
}

// The op failed, or what it made is not to be had: no recipe comes of it.
void Recorder::abandon(Flight& flight) {
  TapeLock lock(*tape_);
  for (const auto& written : flight.writes) {
    supersede(flight, written);
  }
  bind_waiting(flight);
  flight.op.reset();
  flight.writes.clear();
}

}  // namespace retape::detail
