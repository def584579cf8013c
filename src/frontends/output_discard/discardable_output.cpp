#include "frontends/output_discard/discardable_output.h"

#include "record/pipeline.h"
#include "replay/fetch.h"
#include "residency/bytes.h"
#include "residency/refillable.h"
#include "tape/each_tensor.h"
#include "tape/errors.h"
#include "tape/region.h"

#include <ATen/record_function.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace retape::detail {

// All outputs, by storage. An entry's output holds its storage weakly, so that no other storage can
// get the same address.
struct Outputs final : RefillableStorages {
  std::mutex mutex;
  ska::flat_hash_map<const c10::StorageImpl*, Output*> table;
  std::unordered_multimap<const c10::StorageImpl*, Output*> by_root;
  at::CallbackHandle in_backward = 0;

  static Outputs& all() {
    static auto* instance = [] {  // outlives every tensor
      auto* outputs = new Outputs;
      register_refillable_storages(*outputs);
      set_refillable_observer(&before_op);
      return outputs;
    }();
    return *instance;
  }

  bool is_emptied(const c10::StorageImpl* storage) override;
  void fill(const c10::Storage& storage) override;

  // Under the lock.
  std::shared_ptr<Output> find(const c10::StorageImpl* storage);
  void add(Output& output);
  void remove(const Output& output);
  void written(
      const c10::StorageImpl* storage, c10::SmallVectorImpl<std::shared_ptr<Output>>& needed);
  void count();  // after a change
};

namespace {

// Backward may run on a thread that has discarded nothing.
std::unique_ptr<at::ObserverContext> look_at_ops_of_node(const at::RecordFunction&) {
  see_ops_of_refillables();  // the engine resets it after the node
  return nullptr;
}

// What a discarded storage holds in place of its data. Outputs hang on outputs (a region whose
// input was discarded too), so they die one after another and not inside each other.
void let_go(void* context) {
  thread_local std::vector<std::shared_ptr<Output>>* dying = nullptr;
  std::unique_ptr<std::shared_ptr<Output>> held(static_cast<std::shared_ptr<Output>*>(context));
  if (dying != nullptr) {
    dying->push_back(std::move(*held));
    return;
  }
  std::vector<std::shared_ptr<Output>> own;
  dying = &own;
  held.reset();
  while (!own.empty()) {
    auto next = std::move(own.back());
    own.pop_back();
    next.reset();
  }
  dying = nullptr;
}

std::string unreadable(const Output& output, const Region* region) {
  return "[OutputDiscardCheckpoint] " + where(region) + output.what() +
      " was discarded and is not back yet: expected a read by an op on a thread that discards or "
      "in "
      "backward, which brings it back, got one past the dispatcher (data_ptr, numpy, DLPack, a "
      "kernel "
      "of your own) or on another thread. Fix: read it before "
      "discard_output_and_register_recompute(), or read a clone() of it.";
}

// Memory that `storage` owns, as a data pointer: moved out if nobody else knows it.
c10::DataPtr data_of(c10::Storage storage) {
  if (storage.use_count() == 1) {
    return storage.set_data_ptr(c10::DataPtr(nullptr, storage.device()));
  }
  void* data = storage.mutable_data();
  const auto device = storage.device();
  return {
      data,
      new c10::Storage(std::move(storage)),
      [](void* owner) { delete static_cast<c10::Storage*>(owner); },
      device};
}

}  // namespace

std::shared_ptr<Output> Outputs::find(const c10::StorageImpl* storage) {
  const auto it = table.find(storage);
  return it == table.end() ? nullptr : it->second->weak_from_this().lock();  // null: dying
}

void Outputs::count() {
  const bool before = any_refillable();
  set_any_refillable(!table.empty());
  if (!before && !table.empty()) {
    in_backward = at::addGlobalCallback(
        at::RecordFunctionCallback(&look_at_ops_of_node)
            .scopes({at::RecordScope::BACKWARD_FUNCTION}));
  } else if (before && table.empty()) {
    at::removeCallback(in_backward);
  }
}

void Outputs::remove(const Output& output) {
  const auto is_it = [&](const auto& entry) { return entry.second == &output; };
  const auto it = table.find(output.storage_._unsafe_get_target());
  if (it != table.end() && is_it(*it)) {
    table.erase(it);
  }
  for (const auto* root : output.roots_) {
    const auto [first, last] = by_root.equal_range(root);
    if (const auto entry = std::find_if(first, last, is_it); entry != last) {
      by_root.erase(entry);
    }
  }
  count();
}

void Outputs::add(Output& output) {
  table[output.storage_._unsafe_get_target()] = &output;
  for (const auto* root : output.roots_) {
    by_root.emplace(root, &output);
  }
  count();
}

Output::Output(
    c10::intrusive_ptr<Tape> tape,
    c10::intrusive_ptr<Value> value,
    uint64_t first_op,
    std::string what)
    : tape_(std::move(tape)),
      value_(std::move(value)),
      storage_(value_->home),
      what_(std::move(what)) {
  find_roots(first_op);
}

void Output::find_roots(uint64_t first_op) {
  TapeLock lock(*tape_);
  value_->discardable = true;
  const uint64_t plan = ++tape_->plans;
  std::vector<Op*> ops{value_->recipe.get()};
  value_->recipe->planned = plan;
  for (size_t i = 0; i < ops.size(); ++i) {
    for (const auto& input : ops[i]->inputs) {
      if (!input.value || input.value->copied) {
        continue;
      }
      const auto& recipe = input.value->recipe;
      if (!recipe || recipe->order < first_op) {
        roots_.push_back(input.value->home._unsafe_get_target());
      } else if (recipe->planned != plan) {
        recipe->planned = plan;
        ops.push_back(recipe.get());
      }
    }
  }
  std::sort(roots_.begin(), roots_.end());
  roots_.erase(std::unique(roots_.begin(), roots_.end()), roots_.end());
}

std::shared_ptr<Output> Output::watch(
    c10::intrusive_ptr<Tape> tape,
    c10::intrusive_ptr<Value> value,
    uint64_t first_op,
    std::string what) {
  auto& all = Outputs::all();
  std::shared_ptr<Output> output(
      new Output(std::move(tape), std::move(value), first_op, std::move(what)));
  std::shared_ptr<Output> known;
  std::lock_guard<std::mutex> lock(all.mutex);
  known = all.find(output->storage_._unsafe_get_target());
  if (known) {  // a region inside this one has made it
    all.remove(*known);
    if (known->value_ == output->value_) {
      known->roots_ = output->roots_;
      all.add(*known);
      return known;
    }
    known->written_ = true;
  }
  all.add(*output);
  return output;
}

Output::~Output() {
  {
    auto& all = Outputs::all();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.remove(*this);
  }
  TapeLock lock(*tape_);
  value_.reset();
}

// Its storage still holds what the recipe gives.
bool Output::can_be_replayed() {
  TapeLock lock(*tape_);
  return value_->recipe && value_->hold != Hold::Kept && !value_->superseded &&
      !value_->home_moved();
}

size_t Output::discard() {
  const auto impl = storage_.lock();
  if (!impl || impl->nbytes() != value_->nbytes || !can_be_replayed()) {
    return 0;
  }
  c10::DataPtr bytes;  // freed after the lock
  auto text = unreadable(*this, value_->region.get());
  auto owner = std::make_unique<std::shared_ptr<Output>>(shared_from_this());
  std::lock_guard<std::mutex> lock(Outputs::all().mutex);
  if (written_ || discarded_) {
    return 0;
  }
  discarded_ = true;
  bytes = impl->set_data_ptr(c10::DataPtr(nullptr, owner.release(), &let_go, impl->device()));
  impl->release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(text));
  return impl->nbytes();
}

c10::DataPtr Output::bring_data() {
  const int pass = torch::autograd::get_current_graph_task_id();
  struct Use {  // counted, so that no op of the replay takes the result for its own and writes to
                // it
    Tape& tape;
    Value& value;
    int pass;
    Use(Tape& tape, Value& value, int pass) : tape(tape), value(value), pass(pass) {
      TapeLock lock(tape);
      ++value.tokens;
    }
    ~Use() {
      TapeLock lock(tape);
      --value.tokens;
      settle(value, pass);
    }
  };
  Brought brought;
  {
    Use use(*tape_, *value_, pass);
    brought = bring_back(*tape_, *value_, pass);
    TapeLock lock(*tape_);
    value_->lent = value_->hold == Hold::Replayed;
  }
  return data_of(brought.shared ? copy_of(brought.storage) : std::move(brought.storage));
}

// A region whose input was discarded too needs that first, and so on down a chain of any length:
// one after another, not each inside the next one's replay.
void Output::refill() {
  auto& all = Outputs::all();
  std::vector<std::shared_ptr<Output>> open{shared_from_this()};
  while (!open.empty()) {
    const auto output = open.back();
    if (!all.is_emptied(output->storage_._unsafe_get_target())) {
      open.pop_back();
      continue;
    }
    const auto roots = discarded_roots(*output->tape_, *output->value_);
    if (roots.empty()) {
      output->refill_from_what_is_there();
      open.pop_back();
    }
    for (const auto& root : roots) {
      std::lock_guard<std::mutex> lock(all.mutex);
      if (auto known = all.find(root.unsafeGetStorageImpl())) {
        open.push_back(std::move(known));
      }
    }
  }
}

void Output::refill_from_what_is_there() {
  auto data = bring_data();
  auto& all = Outputs::all();
  const auto impl = storage_.lock();
  if (!impl) {
    return;
  }
  c10::DataPtr recipe;  // may be the last to hold this output, so it goes after the lock
  const auto self = shared_from_this();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (!discarded_) {
    return;  // another thread was quicker
  }
  discarded_ = false;
  recipe = impl->set_data_ptr(std::move(data));
  impl->clear_data_ptr_access_error_msg_();
  all.remove(*this);
}

bool Outputs::is_emptied(const c10::StorageImpl* storage) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto it = table.find(storage);
  return it != table.end() && it->second->discarded_;
}

void Outputs::fill(const c10::Storage& storage) {
  std::shared_ptr<Output> output;
  {
    std::lock_guard<std::mutex> lock(mutex);
    output = find(storage.unsafeGetStorageImpl());
  }
  if (output) {
    output->refill();
  }
}

// What must be filled before an op writes to `storage`. Under the lock.
void Outputs::written(
    const c10::StorageImpl* storage, c10::SmallVectorImpl<std::shared_ptr<Output>>& needed) {
  const auto note = [&](Output& output) {
    if (!output.discarded_) {
      output.written_ = true;
    } else if (auto alive = output.weak_from_this().lock()) {
      needed.push_back(std::move(alive));
    }
  };
  if (const auto it = table.find(storage); it != table.end()) {
    note(*it->second);
  }
  const auto [first, last] = by_root.equal_range(storage);
  std::for_each(first, last, [&](const auto& entry) { note(*entry.second); });
}

void before_op(const OpInfo& info, const torch::jit::Stack& stack) {
  if (info.is_view || info.passes_through) {
    return;  // reads nothing, or is seen again in its parts
  }
  c10::SmallVector<std::shared_ptr<Output>, 2> needed;
  {
    auto& all = Outputs::all();
    std::lock_guard<std::mutex> lock(all.mutex);
    const auto args = torch::jit::last(stack, info.arguments);
    for (size_t i = 0; i < args.size(); ++i) {
      const bool writes = std::find(info.writes.begin(), info.writes.end(), i) != info.writes.end();
      each_tensor(args[i], [&](const at::Tensor& tensor, int) {
        if (!tensor.defined() || !tensor.has_storage()) {
          return;
        }
        const auto* storage = tensor.storage().unsafeGetStorageImpl();
        if (writes) {
          all.written(storage, needed);
        } else if (
            const auto it = all.table.find(storage);
            it != all.table.end() && it->second->discarded_) {
          needed.push_back(it->second->shared_from_this());  // alive: the storage owns it
        }
      });
    }
  }
  for (const auto& output : needed) {
    output->refill();
  }
}

}  // namespace retape::detail
