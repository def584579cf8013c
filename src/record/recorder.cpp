#include "record/recorder.h"

#include "record/pipeline.h"
#include "record/token.h"
#include "residency/bytes.h"
#include "residency/refillable.h"
#include "tape/each_tensor.h"

#include <retape/binding.h>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

namespace retape::detail {

namespace {

thread_local Recorder* current_recorder = nullptr;    // while a scope is open
thread_local std::unique_ptr<Recorder> own_recorder;  // made once: its tables keep their memory

// Running statistics are written without a trace, not even in their version counter, by batch norms
// that run after the scope. They are vectors without gradient, and small: the tape takes a copy
// when the scope ends.
bool may_be_a_statistic(const at::Tensor& tensor) {
  constexpr size_t kMostBytes = 1 << 18;
  const auto& whole = tensor.is_view() ? tensor._base() : tensor;
  return whole.dim() == 1 && !tensor.requires_grad() && tensor.is_floating_point() &&
      tensor.is_leaf() && tensor.storage().nbytes() <= kMostBytes;
}

// Where a gradient ends: the node that accumulates it owns the tensor.
bool is_owned_by_graph(const at::Tensor& tensor) {
  const auto is_parameter = [](const at::TensorBase& owner) {
    return owner.is_leaf() && owner.requires_grad();
  };
  return is_parameter(tensor) || (tensor.is_view() && is_parameter(tensor._base()));
}

std::atomic<IdentityCheck> identity_check{nullptr};

bool has_identity(const at::Tensor& tensor) {
  const auto check = identity_check.load(std::memory_order_relaxed);
  return check != nullptr && check(tensor);
}

}  // namespace

Recorder* Recorder::current() {
  return current_recorder;
}

bool Recorder::in_other_backward() const {
  return torch::autograd::get_current_graph_task_id() != scope().graph_task;
}

void Recorder::open(std::shared_ptr<Scope> scope) {
  if (current_recorder == nullptr) {
    if (!own_recorder) {
      own_recorder.reset(new Recorder);
    }
    current_recorder = own_recorder.get();
    auto tape = c10::make_intrusive<Tape>();
    tape->observers = observers_of_new_tape();
    current_recorder->tape_ = std::move(tape);
    see_ops(true);
  }
  auto& recorder = *current_recorder;
  scope->decider = scope->rules->decider(*scope->region, recorder);
  scope->open = true;
  for (const auto& observer : recorder.tape_->observers) {
    observer->region_opened(scope->region);
  }
  recorder.scopes_.push_back(std::move(scope));
}

void Recorder::unwind(Scope& scope) {
  const auto is_it = [&](const auto& other) { return other.get() == &scope; };
  if (current_recorder == nullptr ||
      std::none_of(current_recorder->scopes_.begin(), current_recorder->scopes_.end(), is_it)) {
    return;  // the thread that opened it has ended, and another has its id
  }
  auto& recorder = *current_recorder;
  for (bool last = false; !last;) {
    const auto innermost = recorder.scopes_.back();
    last = innermost.get() == &scope;
    TapeLock lock(*recorder.tape_);
    if (innermost->decider) {
      innermost->decider->close();
      innermost->decider.reset();
    }
    innermost->open = false;
    recorder.scopes_.pop_back();
    if (!recorder.scopes_.empty()) {
      recorder.hand_over(*innermost->region);
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
  if (!scope().rules->keeps_boundaries) {
    return;
  }
  std::vector<c10::intrusive_ptr<Value>> left;
  for (const auto& [storage, entry] : table_) {
    if (entry.owned && entry.owned->region.get() == &inner && entry.owned->recipe &&
        !entry.owned->discardable && entry.owned->in_use_elsewhere()) {
      left.push_back(entry.owned);
    }
  }
  for (const auto& value : left) {
    if (value->needed()) {
      keep(*value);
    }
    value->made_here = true;
    note_made_here(*value);
    sever(*value);
  }
}

// Roots that a legal write after the scope would change: running statistics, and what the scope
// itself has made and autograd has not saved. What it was given is not copied: inputs are large
// (docs/limits.md).
void Recorder::copy_what_may_change() {
  for (const auto& [storage, entry] : table_) {
    const auto value = entry.get();
    if (!value || value->copied || value->hold != Hold::Kept || value->readers.empty()) {
      continue;
    }
    const bool in_use = value->in_use_elsewhere() || ForeignMemory::holds(value->data);
    const bool ours = value->made_here && in_use && is_held_for_recipes(*value);
    // What has changed already raises when replay reads it.
    if ((value->statistic || ours) && !value->home_moved()) {
      value->data = copy_of(value->data);
      value->copied = true;
    }
  }
}

void Recorder::end() {
  constexpr size_t kMostBuckets = 4096;
  see_ops(false);
  current_recorder = nullptr;
  hold_no_more_than_eager(Weigh::AtTheEnd);
  const auto tape = std::move(tape_);
  TapeLock lock(*tape);
  for (const auto& [storage, entry] : table_) {
    if (const auto value = entry.get()) {
      value->versions.rebase();
    }
  }
  copy_what_may_change();
  table_.clear();
  made_here_.clear();
  given_.clear();
  given_sweep_at_ = kSweepAt;
  aliases_.clear();
  opaque_.clear();
  opaque_sweep_at_ = kSweepAt;
  saved_values_.clear();
  settled_values_.clear();
  new_roots_.clear();
  new_roots_look_at_ = 0;
  foreign_.clear();
  sweep_at_ = kSweepAt;
  order_ = order_of_sweep_ = 0;
  had_backward_ = false;
  if (std::max(table_.bucket_count(), given_.bucket_count()) > kMostBuckets) {
    own_recorder.reset();
  }
}

// ---- the current value of a storage

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
  foreign_.sweep();
  for (auto it = aliases_.begin(); it != aliases_.end();) {
    it = it->second.storage.expired() ? aliases_.erase(it) : std::next(it);
  }
  sweep_at_ = std::max(kSweepAt, 2 * table_.size());
}

// The table is looked through as often as copying what it may hold in vain would take longer.
bool Recorder::is_worth_a_sweep() const {
  constexpr size_t kBytesPerEntry = 64;
  return bytes_in_vain_ >= table_.size() * kBytesPerEntry;
}

// A graph that has saved what the value was made from is gone.
bool Recorder::is_of_a_dead_graph(const Value& value) const {
  constexpr size_t kMostLooks = 64;
  std::vector<const Value*> behind{&value};
  for (size_t i = 0; i < behind.size() && i < kMostLooks; ++i) {
    const Value& one = *behind[i];
    const bool was_saved = one.saved || given_.count(one.home._unsafe_get_target()) > 0;
    if (one.released || (was_saved && !is_saved_by_a_graph(one))) {
      return true;
    }
    if (one.recipe) {
      for (const auto& input : one.recipe->inputs) {
        if (input.value) {
          behind.push_back(input.value.get());
        }
      }
    }
  }
  return false;
}

// Values that live on, that nothing needs, and that hold what they were made from: a loss in a list
// of losses. Whoever reads one later finds a root. Under the lock.
void Recorder::forget_what_is_idle() {
  // After a backward, what a window has not decided yet is of a graph that is gone, too.
  const bool graphs_died = std::exchange(had_backward_, false) |
      tape_->released.exchange(false, std::memory_order_relaxed);
  bytes_in_vain_ = 0;
  order_of_sweep_ = order_;
  for (const auto& scope : scopes_) {
    if (scope->decider && graphs_died) {
      scope->decider->settle();
    }
  }
  std::vector<c10::intrusive_ptr<Value>> idle;
  for (const auto& [storage, entry] : table_) {
    if (entry.owned && is_idle(*entry.owned) &&
        (!entry.owned->differentiable || is_of_a_dead_graph(*entry.owned))) {
      idle.push_back(entry.owned);
    }
  }
  for (const auto& value : idle) {
    sever(*value);
  }
  idle.clear();
  sweep();
  for (const auto& scope : scopes_) {
    if (scope->decider) {
      scope->decider->forget_dead();
    }
  }
}

c10::intrusive_ptr<Value> Recorder::find(
    const c10::Storage& storage, const c10::VariableVersion& counter) {
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
  value->versions.rebase();
  // Seen for the first time, it must not have been written.
  const bool is_new = value->versions.empty();
  const bool written = is_new && counter.enabled() && counter.current_version() != 0;
  watch_origin(*value);
  const bool moved = written || value->home_moved();
  if (value->versions.watch(counter)) {
    remember_aliases(storage, {value->versions.first().counter, counter});
  }
  if (moved || value->nbytes != storage.nbytes()) {  // written where no scope was
    value->superseded = true;
    note_made_here(*value);
    table_.erase(it);
    return {};
  }
  return value;
}

// The first to look at a value may look at it through `.data` or another storage: who holds the
// tensor itself writes through that one's counter.
void Recorder::watch_origin(Value& value) {
  if (const auto origin = value.origin.lock()) {
    value.versions.watch(origin->version_counter());
  }
  value.origin.reset();
}

// Tensors on the same storage whose writes move different counters: `.data`, set_. What comes to be
// known of the storage later watches all of them.
void Recorder::remember_aliases(
    const c10::Storage& storage, std::initializer_list<c10::VariableVersion> counters) {
  auto& known = aliases_[storage.unsafeGetStorageImpl()];
  if (known.storage._unsafe_get_target() != storage.unsafeGetStorageImpl()) {
    known.storage = storage.getWeakStorageImpl();
  }
  for (const auto& counter : counters) {
    const bool is_new = std::none_of(
        known.counters.begin(), known.counters.end(), [&](const auto& other) {
          return same_counter(other, counter);
        });
    if (counter.enabled() && is_new) {
      known.counters.push_back(counter);
    }
  }
}

c10::intrusive_ptr<Value> Recorder::describe(
    const c10::Storage& storage, const c10::VariableVersion& counter) {
  auto value = c10::make_intrusive<Value>();
  value->region = scope().region;
  value->home = storage.getWeakStorageImpl();
  // Below autograd a result may still be wrapped anew (factories are), with another counter, and
  // only if nobody holds this one: then the counter is taken when the tensor is first seen.
  if (!c10::impl::tls_local_dispatch_key_set().excluded_.has(
          c10::DispatchKey::AutogradFunctionality)) {
    value->versions.watch(counter);
  }
  if (!aliases_.empty()) {
    if (const auto it = aliases_.find(storage.unsafeGetStorageImpl()); it != aliases_.end()) {
      for (const auto& other : it->second.counters) {
        value->versions.watch(other);
      }
    }
  }
  value->nbytes = storage.nbytes();
  value->misalignment = misalignment_of(*storage.unsafeGetStorageImpl());
  return value;
}

// Storages that the tape knows and that share bytes with this one, though torch does not know it.
std::vector<c10::Storage> Recorder::on_the_same_memory(const c10::Storage& storage) const {
  if (!ForeignMemory::holds(storage)) {
    return foreign_.empty() ? std::vector<c10::Storage>()
                            : foreign_.overlapping(*storage.unsafeGetStorageImpl());
  }
  std::vector<c10::Storage> found;
  const auto range = AddressRange::of(*storage.unsafeGetStorageImpl());
  for (const auto& [address, entry] : table_) {
    const auto value = entry.get();
    if (!value || address == storage.unsafeGetStorageImpl()) {
      continue;
    }
    if (auto home = value->home.lock(); home && AddressRange::of(*home).overlaps(range)) {
      found.emplace_back(std::move(home));
    }
  }
  return found;
}

// The value of another storage, if this one lies on the very same bytes.
c10::intrusive_ptr<Value> Recorder::on_the_same_bytes(const c10::Storage& storage) {
  if (!ForeignMemory::holds(storage)) {
    return {};
  }
  const auto range = AddressRange::of(*storage.unsafeGetStorageImpl());
  for (const auto& other : on_the_same_memory(storage)) {
    const auto its = AddressRange::of(*other.unsafeGetStorageImpl());
    if (its.begin == range.begin && its.end == range.end) {
      const auto known = table_.at(other.unsafeGetStorageImpl()).get();
      if (known && !known->uninitialized && !known->home_moved()) {
        watch_origin(*known);
        return known;
      }
    }
  }
  return {};
}

// A root on memory that another tensor writes to as well must notice that one's writes.
void Recorder::watch_overlapping(const c10::Storage& storage, Value& value) {
  for (const auto& other : on_the_same_memory(storage)) {
    const auto it = table_.find(other.unsafeGetStorageImpl());
    const auto known = it == table_.end() ? c10::intrusive_ptr<Value>() : it->second.get();
    if (known) {
      watch_origin(*known);
    }
    if (known && !known->versions.empty() && !value.versions.empty()) {
      const auto& its = known->versions.first().counter;
      const auto& own = value.versions.first().counter;
      remember_aliases(storage, {own, its});
      remember_aliases(other, {own, its});
      value.versions.watch(its);
      known->versions.watch(own);
    }
  }
  if (ForeignMemory::holds(storage)) {
    foreign_.add(storage);
  }
}

c10::intrusive_ptr<Value> Recorder::find_or_root(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
  auto value = find(storage, counter);
  if (value && !value->uninitialized) {
    if (value->given && !value->owned_by_graph && is_owned_by_graph(tensor)) {
      value->owned_by_graph = true;  // it was seen detached before
      value->statistic = false;
    }
    return value;
  }
  if (!value) {
    if (auto same = on_the_same_bytes(storage)) {
      same->versions.watch(counter);
      return same;
    }
    value = describe(storage, counter);
    value->versions.watch(counter);
    value->leaf = tensor.is_leaf();
    value->owned_by_graph = is_owned_by_graph(tensor);
    value->given = true;
    value->made_here = is_made_here(storage);
    watch_overlapping(storage, *value);
  }
  // Read before it was written: what it holds is what counts.
  value->made_here |= std::exchange(value->uninitialized, false);
  value->statistic = may_be_a_statistic(tensor);
  value->keep(storage);
  set_current(storage.unsafeGetStorageImpl(), value);
  if (!value->owned_by_graph) {
    new_roots_.push_back({c10::weak_intrusive_ptr<Value>(value)});
  }
  return value;
}

// By this scope, without a recipe that the tape knows; or it lies on the memory of one that is.
bool Recorder::is_made_here(const c10::Storage& storage) {
  if (made_here_.find(storage.unsafeGetStorageImpl()) != nullptr) {
    return true;
  }
  if (!ForeignMemory::holds(storage)) {
    return false;
  }
  for (const auto& other : on_the_same_memory(storage)) {
    const auto it = table_.find(other.unsafeGetStorageImpl());
    const auto known = it == table_.end() ? c10::intrusive_ptr<Value>() : it->second.get();
    if (known && (!known->given || known->made_here)) {
      return true;
    }
  }
  const auto range = AddressRange::of(*storage.unsafeGetStorageImpl());
  return made_here_.any_of(
      [&](const c10::StorageImpl& other) { return AddressRange::of(other).overlaps(range); });
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
  if (const auto it = table_.find(address);
      it != table_.end() && it->second.owned.get() == &value) {
    note_made_here(value);     // it may die before its storage does
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
  if (value.hold == Hold::None) {
    forget_current(value);  // the next to read it finds a root
  } else if (!value.saved) {
    new_roots_.push_back(
        {c10::weak_intrusive_ptr<Value>(c10::intrusive_ptr<Value>::reclaim_copy(&value))});
  }
}

// Not where its home holds a later version by now: that one is current.
void Recorder::forget_current(const Value& value) {
  const auto it = table_.find(value.home._unsafe_get_target());
  if (it != table_.end() && it->second.get().get() == &value) {
    note_made_here(value);
    table_.erase(it);
  }
}

// The tape will know no recipe of what its home holds from now on. Who reads that finds a root, and
// such a root may change after the scope as the value could (copy_what_may_change).
void Recorder::note_made_here(const Value& value) {
  if (!value.given || value.made_here) {
    if (auto home = value.home.lock()) {
      made_here_[c10::Storage(std::move(home))];
    }
  }
}

// ---- what autograd saves

bool Recorder::may_drop(const at::Tensor& tensor) {
  const auto packs_all = [](const auto& scope) { return scope->packs_all; };
  if (any_refillable() || std::any_of(scopes_.begin(), scopes_.end(), packs_all)) {
    return true;  // it may be discarded, and the token brings it back
  }
  if (!is_plain(tensor)) {
    TapeLock lock(*tape_);
    if (is_wrapper(tensor) && scope().decider) {
      scope().decider->saved_wrapper();
    }
    return false;
  }
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    return false;
  }
  const auto& storage = tensor.storage();
  const bool is_object = has_identity(tensor);  // may run foreign code: not under the lock
  TapeLock lock(*tape_);
  if (tensor.is_leaf() && tensor.requires_grad()) {
    count_given(storage, /*leaf=*/true);
    return false;
  }
  if (flight_ != nullptr && flight_->may_make(storage.unsafeGetStorageImpl())) {
    return true;  // nobody knows before the op has ended
  }
  // Lean nodes write over what they have used, if nothing else holds the tensor: a token gives them
  // one of their own.
  const auto& rules = *scope().rules;
  if (flight_ != nullptr && rules.drops_nothing && rules.edits_graph && !is_object) {
    return true;
  }
  const auto value = find(storage, tensor.unsafeGetTensorImpl()->version_counter());
  if (value && value->recipe && !is_object) {
    return true;
  }
  if (value) {
    value->saved = value->saved_itself = true;
  }
  count_given(storage, tensor.is_leaf() || (tensor.is_view() && tensor._base().is_leaf()));
  return false;
}

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
  if (given_.size() >= given_sweep_at_) {
    for (auto it = given_.begin(); it != given_.end();) {
      it = it->second.expired() ? given_.erase(it) : std::next(it);
    }
    given_sweep_at_ = std::max(kSweepAt, 2 * given_.size());
  }
  if (given_.emplace(storage.unsafeGetStorageImpl(), storage.getWeakStorageImpl()).second) {
    auto& counters = region().counters;
    counters.values_saved.add(1);
    counters.bytes_saved.add(storage.nbytes());
    if (leaf) {
      counters.bytes_given.add(storage.nbytes());
    }
    if (!opaque_.empty()) {
      count_kept(storage);
    }
  }
}

// Autograd has saved it: if a custom op made it, that op could be called replayable.
void Recorder::count_kept(const c10::Storage& storage) {
  const auto it = opaque_.find(storage.unsafeGetStorageImpl());
  if (it != opaque_.end() &&
      it->second.storage._unsafe_get_target() == storage.unsafeGetStorageImpl()) {
    region().kept_ops.add(it->second.op->name.name, storage.nbytes());
    opaque_.erase(it);
  }
}

void Recorder::note_opaque(const OpInfo& info, const torch::jit::Stack& stack) {
  const auto& rules = *scope().rules;
  if (!rules.reports_kept_ops || rules.birth(info) == Birth::Keep) {
    return;  // it would be kept in any case
  }
  TapeLock lock(*tape_);
  if (opaque_.size() >= opaque_sweep_at_) {
    for (auto it = opaque_.begin(); it != opaque_.end();) {
      it = it->second.storage.expired() ? opaque_.erase(it) : std::next(it);
    }
    opaque_sweep_at_ = std::max(kSweepAt, 2 * opaque_.size());
  }
  for (const auto& result : torch::jit::last(stack, info.returns)) {
    each_tensor(result, [&](const at::Tensor& tensor, int) {
      if (!tensor.defined() || !is_plain(tensor) ||
          table_.count(tensor.storage().unsafeGetStorageImpl()) > 0) {
        return;
      }
      const auto& storage = tensor.storage();
      opaque_[storage.unsafeGetStorageImpl()] = {storage.getWeakStorageImpl(), &info};
      if (given_.count(storage.unsafeGetStorageImpl()) > 0) {
        count_kept(storage);  // saved by the op's own autograd kernel
      }
    });
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

// Null once its scope is closed.
Decider* Recorder::decider_of(const Region& region) const {
  const auto is_it = [&](const auto& scope) { return scope->region.get() == &region; };
  const auto it = std::find_if(scopes_.rbegin(), scopes_.rend(), is_it);
  return it == scopes_.rend() ? nullptr : (*it)->decider.get();
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
      if (auto* decider = decider_of(*value->region)) {
        decider->saved(*value);
      }
      saved_values_.add(*value);
    }
    ++value->tokens;
    bury(std::move(token.storage_));
    token.storage_ = c10::Storage();
    token.value_ = std::move(value);
    return;
  }
  if (value) {
    value->saved = true;
  }
  count_given(token.storage_, token.leaf_);
}

}  // namespace retape::detail

void retape::set_identity_check(IdentityCheck check) {
  detail::identity_check.store(check);
}
