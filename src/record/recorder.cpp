#include "record/recorder.h"

#include "check/examiner.h"
#include "check/fault.h"
#include "record/each_tensor.h"
#include "record/interceptor.h"
#include "recompute/token.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <deque>

namespace retape::detail {

namespace {

thread_local Recorder* current_recorder = nullptr;     // while a scope is open
thread_local std::unique_ptr<Recorder> own_recorder;  // made once: its tables keep their memory

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

bool contains(c10::ArrayRef<uint16_t> list, size_t item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

// Running statistics are written without a trace, not even in their version counter, by batch norms
// that run after the scope. They are vectors without gradient, and small: the tape takes a copy.
bool may_be_a_statistic(const at::Tensor& tensor) {
  constexpr size_t kMostBytes = 1 << 18;
  return tensor.dim() == 1 && !tensor.requires_grad() && tensor.is_floating_point() &&
      tensor.is_leaf() && tensor.storage().nbytes() <= kMostBytes;
}

}  // namespace

Recorder* Recorder::current() {
  return current_recorder;
}

bool Recorder::in_other_backward() const {
  return torch::autograd::get_current_graph_task_id() != scopes_.back()->graph_task;
}

void Recorder::open(std::shared_ptr<Region> region) {
  if (current_recorder == nullptr) {
    if (!own_recorder) {
      own_recorder.reset(new Recorder);
    }
    current_recorder = own_recorder.get();
    auto tape = c10::make_intrusive<Tape>();
    tape->examiner = Examiner::now();
    tape->number = tape->examiner ? tape->examiner->begin_tape() : 0;
    current_recorder->tape_ = std::move(tape);
    set_intercepting(true);
  }
  auto& recorder = *current_recorder;
  region->decider = make_decider(*region, recorder);
  region->open = true;
  recorder.tape_->regions.push_back(region);
  if (recorder.tape_->examiner) {
    recorder.tape_->examiner->opened(region);
  }
  recorder.scopes_.push_back(std::move(region));
}

void Recorder::unwind(Region& region) {
  if (current_recorder == nullptr) {
    return;  // the thread that opened it has ended, and another has its id
  }
  auto& recorder = *current_recorder;
  for (bool last = false; !last;) {
    const auto innermost = recorder.scopes_.back();
    last = innermost.get() == &region;
    TapeLock lock(*recorder.tape_);
    if (innermost->decider) {
      innermost->decider->close();
      innermost->decider.reset();
    }
    innermost->open = false;
    recorder.scopes_.pop_back();
    if (!recorder.scopes_.empty()) {
      recorder.hand_over(*innermost);
    }
  }
  if (recorder.scopes_.empty()) {
    recorder.end();
  }
}

// What a region leaves to the scope around it, the inputs of the regions that follow among it, is
// kept: somebody drew a boundary here. Not in a scope that drops everything, boundaries too, nor in
// one whose own function decides.
void Recorder::hand_over(const Region& inner) {
  const auto& around = region().policy.impl();
  const bool drops = around.kind == Policy::Impl::Kind::Full && !around.anchors;
  if (drops || around.kind == Policy::Impl::Kind::Function) {
    return;
  }
  std::vector<c10::intrusive_ptr<Value>> left;
  for (const auto& [storage, entry] : table_) {
    if (entry.owned && entry.owned->region == &inner && entry.owned->recipe &&
        !entry.owned->discardable && entry.owned->in_use_elsewhere()) {
      left.push_back(entry.owned);
    }
  }
  for (const auto& value : left) {
    if (value->tokens > 0 || value->readers > 0) {
      keep(*value);
    }
    sever(*value);
  }
}

void Recorder::end() {
  constexpr size_t kMostBuckets = 4096;
  set_intercepting(false);
  current_recorder = nullptr;
  const auto tape = std::move(tape_);
  TapeLock lock(*tape);
  table_.clear();
  given_.clear();
  sweep_at_ = kSweepAt;
  order_ = 0;
  if (std::max(table_.bucket_count(), given_.bucket_count()) > kMostBuckets) {
    own_recorder.reset();
  }
}

// ---- the current value of a storage ---------------------------------------------------------

void Recorder::set_current(const c10::StorageImpl* storage, c10::intrusive_ptr<Value> value) {
  auto& entry = table_[storage];
  entry.known = c10::weak_intrusive_ptr<Value>(value);
  entry.owned = value->hold == Hold::None ? std::move(value) : c10::intrusive_ptr<Value>();
  if (table_.size() > sweep_at_) {
    sweep();
  }
}

void Recorder::sweep() {
  for (auto it = table_.begin(); it != table_.end();) {
    const auto& entry = it->second;
    const bool dead = entry.owned ? entry.owned->home.expired() : entry.known.expired();
    it = dead ? table_.erase(it) : std::next(it);
  }
  sweep_at_ = std::max(kSweepAt, 2 * table_.size());
}

c10::intrusive_ptr<Value> Recorder::find(
    const c10::Storage& storage,
    const c10::VariableVersion& counter) {
  const auto it = table_.find(storage.unsafeGetStorageImpl());
  if (it == table_.end()) {
    return {};
  }
  auto value = it->second.get();
  // An entry outlives its value, and then its address may have a new tenant.
  if (!value || value->home._unsafe_get_target() != storage.unsafeGetStorageImpl()) {
    table_.erase(it);
    return {};
  }
  bool moved = value->home_moved();
  if (!value->counter.enabled()) {  // seen for the first time, and it must not have been written
    value->counter = counter;
    value->version = counter.current_version();
    moved = value->version != 0;
  }
  if (moved || value->nbytes != storage.nbytes()) {  // written where no scope was
    value->superseded = true;
    table_.erase(it);
    return {};
  }
  return value;
}

c10::intrusive_ptr<Value> Recorder::describe(
    const c10::Storage& storage,
    const c10::VariableVersion& counter) {
  auto value = c10::make_intrusive<Value>();
  value->region = &region();
  value->home = storage.getWeakStorageImpl();
  // Below autograd a result may still be wrapped anew (factories are), with another counter, and
  // only if nobody holds this one: then the counter is taken when the tensor is first seen.
  if (!c10::impl::tls_local_dispatch_key_set().excluded_.has(
          c10::DispatchKey::AutogradFunctionality)) {
    value->counter = counter;
    value->version = counter.current_version();
  }
  value->nbytes = storage.nbytes();
  return value;
}

c10::intrusive_ptr<Value> Recorder::find_or_root(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
  auto value = find(storage, counter);
  if (value && !value->uninitialized) {
    return value;
  }
  if (!value) {
    value = describe(storage, counter);
    value->counter = counter;
    value->version = counter.current_version();
    value->leaf = tensor.is_leaf();
  }
  value->uninitialized = false;  // read before it was written: what it holds is what counts
  if (may_be_a_statistic(tensor)) {
    value->keep(copy_of(storage));
    value->copied = true;
  } else {
    value->keep(storage);
  }
  set_current(storage.unsafeGetStorageImpl(), value);
  return value;
}

c10::intrusive_ptr<Value> Recorder::made_since(uint64_t first, const at::Tensor& tensor) {
  TapeLock lock(*tape_);
  auto value = find(tensor.storage(), tensor.unsafeGetTensorImpl()->version_counter());
  const bool made = value && value->recipe && value->recipe->order >= first;
  return made ? value : c10::intrusive_ptr<Value>();
}

void Recorder::keep(Value& value) {
  auto impl = value.home.lock();
  TORCH_INTERNAL_ASSERT(impl, "retape: a value must be kept while it is alive");
  const auto* address = impl.get();
  if (value.saved) {
    value.region->counters.values_dropped.subtract(1);
    value.region->counters.bytes_dropped.subtract(value.nbytes);
  }
  value.keep(c10::Storage(std::move(impl)));
  if (const auto it = table_.find(address); it != table_.end() && it->second.owned.get() == &value) {
    it->second.owned.reset();  // the caller holds it too
  }
}

void Recorder::drop(Value& value) {
  const auto* address = value.home._unsafe_get_target();
  if (value.saved) {
    value.region->counters.values_dropped.add(1);
    value.region->counters.bytes_dropped.add(value.nbytes);
  }
  value.drop();
  if (const auto it = table_.find(address); it != table_.end() && !it->second.owned) {
    if (auto known = it->second.known.lock(); known.get() == &value) {
      it->second.owned = std::move(known);
    }
  }
}

void Recorder::sever(Value& value) {
  if (value.recipe) {
    value.recipe->results[value.slot].value = nullptr;
    bury(std::move(value.recipe));
    value.recipe.reset();
  }
  const auto it = table_.find(value.home._unsafe_get_target());
  if (value.hold == Hold::None && it != table_.end() && it->second.get().get() == &value) {
    table_.erase(it);  // the next to read it finds a root
  }
}

// ---- one op ---------------------------------------------------------------------------------

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

  const auto birth = region().policy.impl().birth(info);
  const bool recorded = info.has_recipe && birth != Birth::Keep;
  if (!recorded && !info.uninitialized && info.writes.empty() && info.scratch.empty() &&
      !region().decider) {
    handle.redispatchBoxed(below, stack);  // its results are roots, found when somebody reads them
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
  try {
    prepare(flight, *stack);
    if (tape_->examiner && flight.op) {
      flight.unwritten = left_unwritten(info, torch::jit::last(*stack, info.arguments));
      flight.op->witness = tape_->examiner->witness(info, *stack);
    }
    handle.redispatchBoxed(below, stack);
    made = made_by(flight, *stack);
    if (tape_->examiner && flight.op) {
      show(flight, made);
    }
    if (flight.op && birth == Birth::Ask) {
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

void Recorder::prepare(Flight& flight, const torch::jit::Stack& stack) {
  const OpInfo& info = *flight.info;
  const auto args = torch::jit::last(stack, info.arguments);
  const bool training = info.training_arg >= 0 && args[info.training_arg].isBool() &&
      args[info.training_arg].toBool();
  if (flight.op) {
    const auto flags = Flags::now(info.cheap ? flags_ : nullptr);
    if (flags_ == nullptr || !(*flags_ == flags)) {
      flags_ = interned(flags);
    }
    flight.op->info = &info;
    flight.op->region = &region();
    flight.op->flags = flags_;
    flight.op->order = order_++;
  }

  TapeLock lock(*tape_);
  if (region().decider) {
    region().decider->before_op();
  }
  for (size_t i = 0; i < args.size(); ++i) {
    const auto role = contains(info.writes, i)            ? Role::Write
        : training && contains(info.scratch, i) ? Role::Scratch
                                                : Role::Read;
    bool taken = false;
    each_tensor(args[i], [&](const at::Tensor& tensor, int element) {
      if (tensor.defined()) {
        taken = true;
        take(flight, tensor, i, element, role);
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

void Recorder::take(Flight& flight, const at::Tensor& tensor, size_t arg, int element, Role role) {
  if (!is_plain(tensor)) {
    flight.op.reset();
    return;
  }
  const auto& storage = tensor.storage();
  flight.touched.push_back(storage.unsafeGetStorageImpl());
  if (flight.info->on_cpu_only && !tensor.is_cpu()) {
    flight.op.reset();
  }
  if (role == Role::Write || role == Role::Scratch) {
    take_written(flight, tensor, role);
  }
  if (!flight.op) {
    return;
  }
  c10::intrusive_ptr<Value> value;
  if (role == Role::Read || role == Role::Write) {
    value = find_or_root(tensor);
  } else if (role == Role::Scratch && injected(Fault::BatchNormTwice)) {
    value = describe(storage, tensor.unsafeGetTensorImpl()->version_counter());
    value->keep(storage);
  }
  Input& input = flight.op->add_input(std::move(value), tensor);
  input.nbytes = storage.nbytes();
  input.device = storage.device_type();
  input.arg = static_cast<uint16_t>(arg);
  input.element = element;
  input.role = role;
}

void Recorder::take_written(Flight& flight, const at::Tensor& tensor, Role& role) {
  const auto& storage = tensor.storage();
  const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
  Written written{storage, counter, find(storage, counter)};
  const auto& before = written.before;
  if (before) {
    written.version_before = before->counter.current_version();
  }
  if (flight.op && role == Role::Write) {
    const bool known = before && (before->recipe || before->uninitialized);
    if (known && flight.info->overwrites && View(tensor).covers(storage.nbytes())) {
      role = Role::Fresh;
    } else if (!known || before->uninitialized) {
      // What was given stays where it is: its next version is a root, and costs nothing more.
      flight.op.reset();
    }
    if (flight.op) {
      written.input = static_cast<int>(flight.op->inputs.size());
    }
  }
  flight.writes.push_back(std::move(written));
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
    auto& input = flight.op->inputs[written.input];
    input.role = Role::Write;
    input.value = written.before;
    ++input.value->readers;
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
    } else if (before.readers > 0) {
      if (!injected(Fault::StaleVersion)) {
        before.data = copy_of(written.storage);
      }
      before.copied = true;
    }
  }
}

c10::SmallVector<Recorder::Made, 2> Recorder::made_by(
    const Flight& flight,
    const torch::jit::Stack& stack) const {
  c10::SmallVector<Made, 2> made;
  const OpInfo& info = *flight.info;
  if (!flight.op && !info.uninitialized) {
    return made;
  }
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
      if (routing || flight.touches(storage) ||
          std::find(seen.begin(), seen.end(), storage) != seen.end()) {
        return;
      }
      seen.push_back(storage);
      made.push_back({tensor, 0, source});
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
  const auto& impl = scopes_.back()->policy.impl();
  for (size_t i = 0; i < made.size(); ++i) {
    auto& item = made[i];
    const View view = item.tensor.defined() ? View(item.tensor)
                                            : flight.op->inputs[flight.writes[item.write].input].view;
    const auto& storage =
        item.tensor.defined() ? item.tensor.storage() : flight.writes[item.write].storage;
    const ValueInfo info{
        flight.info->name.name,
        flight.info->name.overload_name,
        scopes_.back()->name,
        view.sizes(),
        view.dtype(),
        storage.nbytes(),
        i,
        flight.info->cheap};
    item.keep = impl.decide(info) == Decision::Keep;
  }
}

// To whoever will compare.
void Recorder::show(const Flight& flight, c10::SmallVectorImpl<Made>& made) const {
  for (auto& item : made) {
    if (item.tensor.defined()) {
      item.seen = tape_->examiner->seen(item.tensor);
      continue;
    }
    // All that was seen of the version before, not of the storage: a reduction's is larger than its
    // result, and the rest of it is garbage.
    const auto& written = flight.writes[item.write];
    const auto& input = flight.op->inputs[written.input];
    if (input.arg != flight.unwritten) {
      const bool known = written.before && written.before->seen;
      item.seen = tape_->examiner->seen((known ? written.before->seen->view : input.view).on(written.storage));
    }
  }
}

void Recorder::finish(Flight& flight, c10::SmallVectorImpl<Made>& made) {
  TapeLock lock(*tape_);
  for (const auto& written : flight.writes) {
    supersede(written);
  }
  for (auto& item : made) {
    if (!item.keep) {
      enter(flight, item);
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
  const auto& storage =
      made.tensor.defined() ? made.tensor.storage() : flight.writes[made.write].storage;
  const auto& counter = made.tensor.defined()
      ? made.tensor.unsafeGetTensorImpl()->version_counter()
      : flight.writes[made.write].counter;
  auto value = describe(storage, counter);
  if (flight.op) {
    value->slot = static_cast<uint32_t>(flight.op->results.size());
    value->recipe = flight.op;
    flight.op->results.push_back({value.get(), made.source});
    if (made.seen) {
      value->seen = std::move(made.seen);
      tape_->examiner->enter(tape_->number, *flight.op, *value);
    }
  } else {
    value->uninitialized = true;
  }
  set_current(storage.unsafeGetStorageImpl(), value);
  if (flight.op && region().decider) {
    region().decider->made(*value);
  }
}

// The storage holds a new version, with a recipe or without.
void Recorder::supersede(const Written& written) {
  if (written.before) {
    Value& before = *written.before;
    before.superseded = true;
    const bool unseen = before.counter.current_version() == written.version_before;
    if (unseen && before.tokens > 0) {
      before.alias = written.storage;
    }
  }
  table_.erase(written.storage.unsafeGetStorageImpl());
}

// The op failed, or what it made is not to be had: no recipe comes of it.
void Recorder::abandon(Flight& flight) {
  TapeLock lock(*tape_);
  for (const auto& written : flight.writes) {
    supersede(written);
  }
  bind_waiting(flight);
  flight.op.reset();
  flight.writes.clear();
}

// ---- what autograd saves --------------------------------------------------------------------

void Recorder::save(Token& token, const at::Tensor& tensor) {
  TapeLock lock(*tape_);
  token.storage_ = tensor.storage();
  const auto* storage = token.storage_.unsafeGetStorageImpl();
  // Outputs are packed before their op has ended, and so is what an in-place op has just written.
  if (flight_ != nullptr && flight_->may_make(storage)) {
    token.waiting_ = true;
    flight_->waiting.push_back(&token);
    return;
  }
  bind(token);
  if (token.storage_ && tensor.is_leaf()) {
    token.original_ = tensor;
    token.storage_ = c10::Storage();
  }
}

void Recorder::count_given(const c10::Storage& storage, bool leaf) {
  if (given_.emplace(storage.unsafeGetStorageImpl(), true).second) {
    auto& counters = region().counters;
    counters.values_saved.add(1);
    counters.bytes_saved.add(storage.nbytes());
    if (leaf) {
      counters.bytes_given.add(storage.nbytes());
    }
  }
}

void Recorder::forget(Token& token) {
  if (flight_ != nullptr) {
    auto& waiting = flight_->waiting;
    waiting.erase(std::remove(waiting.begin(), waiting.end(), &token), waiting.end());
  }
}

void Recorder::bind_waiting(Flight& flight) {
  for (auto* token : flight.waiting) {
    token->waiting_ = false;
    bind(*token);
  }
  flight.waiting.clear();
}

void Recorder::bind(Token& token) {
  auto value = find(token.storage_, token.counter_);
  if (value && value->recipe && !value->home_moved()) {
    if (!value->saved) {
      value->saved = true;
      auto& counters = value->region->counters;
      counters.values_saved.add(1);
      counters.bytes_saved.add(value->nbytes);
      if (value->hold != Hold::Kept) {
        counters.values_dropped.add(1);
        counters.bytes_dropped.add(value->nbytes);
      }
      if (value->region->decider) {
        value->region->decider->saved(*value);
      }
    }
    ++value->tokens;
    bury(std::move(token.storage_));
    token.storage_ = c10::Storage();
    token.value_ = value;
    return;
  }
  if (value) {
    value->saved = true;
  }
  count_given(token.storage_, token.leaf_);
}

}  // namespace retape::detail
