// Recorder: turns the ops of one thread into values and recipes while a scope is open.
//
// The interceptor hands it every op that reaches a kernel; autograd's saved tensors come to it
// through Token. It knows the current value of every storage it has seen, and nothing about
// memory: who keeps what is for the policy to say.
#pragma once

#include "record/decider.h"
#include "record/foreign_memory.h"
#include "record/scope.h"
#include "record/weak_storages.h"
#include "tape/tape.h"

#include <ATen/core/stack.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace retape::detail {

class Token;

class Recorder final : private Shelf {
 public:
  // Of this thread; null where no scope is open.
  static Recorder* current();

  // Scopes nest; the outermost one makes the recorder and its tape, and ends them.
  static void open(std::shared_ptr<Scope> scope);
  static void unwind(Scope& scope);  // closes it, and what is open inside it

  // In a backward that the scope was not opened in: what autograd does there is not forward.
  bool in_other_backward() const;

  Tape& tape() { return *tape_; }
  uint64_t ops() const { return order_; }  // recorded so far

  // What `tensor` (plain) shows, if op number `first` or a later one made it and can be replayed.
  c10::intrusive_ptr<Value> made_since(uint64_t first, const at::Tensor& tensor);
  size_t depth() const { return scopes_.size(); }
  Scope& scope() const { return *scopes_.back(); }  // the innermost one
  Region& region() const { return *scope().region; }

  // What happens now is not forward: an op is running already, or a backward.
  bool off() const { return in_op() || in_other_backward(); }
  bool in_op() const { return flight_ != nullptr; }

  // Runs the op through `below` and records it.
  void run(
      const c10::OperatorHandle& handle,
      const OpInfo& info,
      c10::DispatchKeySet below,
      torch::jit::Stack* stack);

  // Runs an op of a backward inside the scope. Nothing is recorded, but recipes must not read what
  // it writes, and what it makes is made here. A selective policy is asked, as torch asks it.
  void pass_in_backward(
      const c10::OperatorHandle& handle,
      const OpInfo& info,
      c10::DispatchKeySet below,
      torch::jit::Stack* stack);

  // Runs an op that makes nothing. A selective policy counts it all the same.
  void pass(
      const c10::OperatorHandle& handle,
      const OpInfo& info,
      c10::DispatchKeySet below,
      torch::jit::Stack* stack);

  // A write that is not recorded: by a kernel of a custom op, or past the dispatcher.
  void about_to_write(const at::Tensor& tensor);
  void about_to_write(const c10::Storage& storage, const c10::VariableVersion& counter);

  // A handler has written to it, below the kernels that move its version. `rebound`: it has given
  // it another storage, whose bytes are as they were.
  void adopt_version(const at::Tensor& tensor, bool rebound);

  // Autograd is about to save `tensor`. False: it will be kept, so autograd does better without a
  // token: it hands out the very tensor that it was given.
  bool may_drop(const at::Tensor& tensor);

  // Autograd saves `tensor` (plain): binds the token now, or when the op that is running ends.
  void save(Token& token, const at::Tensor& tensor);
  void forget(Token& token);                                 // a waiting token died
  void count_given(const c10::Storage& storage, bool leaf);  // it saves what has no recipe

 private:
  // Current value of a storage. A value that holds nothing is owned here, or its recipe would be
  // lost before anybody reads it; one that holds its storage is not, or the storage would live as
  // long as the scope.
  struct Entry {
    c10::intrusive_ptr<Value> owned;
    c10::weak_intrusive_ptr<Value> known{c10::intrusive_ptr<Value>()};
    c10::intrusive_ptr<Value> get() const { return owned ? owned : known.lock(); }
  };

  static constexpr size_t kSweepAt = 64;  // small tables stay in cache

  // Values by weak references. Those that are gone are taken out now and then.
  class WeakValues {
   public:
    void add(Value& value) {
      if (values_.size() >= sweep_at_) {
        const auto gone = [](const auto& weak) { return weak.expired(); };
        values_.erase(std::remove_if(values_.begin(), values_.end(), gone), values_.end());
        sweep_at_ = std::max(kSweepAt, 2 * values_.size());
      }
      values_.emplace_back(c10::intrusive_ptr<Value>::reclaim_copy(&value));
    }
    void take(WeakValues& others) {
      values_.insert(values_.end(), others.values_.begin(), others.values_.end());
      others.clear();
    }
    void clear() {
      values_.clear();
      sweep_at_ = kSweepAt;
    }
    auto begin() const { return values_.begin(); }
    auto end() const { return values_.end(); }

   private:
    std::vector<c10::weak_intrusive_ptr<Value>> values_;
    size_t sweep_at_ = kSweepAt;
  };

  struct Written {
    c10::Storage storage;
    c10::VariableVersion counter;      // of the tensor it is written through
    c10::intrusive_ptr<Value> before;  // null: not known to the tape
    int input = -1;                    // of the op, where its next version has a recipe
  };

  // Something the running op has made, that could get a recipe.
  struct Made {
    at::Tensor tensor;  // undefined for a storage that was written
    size_t write = 0;   // then: which of the flight's
    int32_t source = 0;
    bool keep = false;
    std::unique_ptr<Note> note;  // of an observer
  };

  // Counters of tensors on one storage that has more than one. The weak reference keeps its address
  // from being given to another storage.
  struct Aliases {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
    std::vector<c10::VariableVersion> counters;
  };

  // Made by a custom op that may not be replayed.
  struct Opaque {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
    const OpInfo* op = nullptr;
  };

  struct Flight {                  // the op that is running
    const OpInfo* info = nullptr;  // null: nothing of it is recorded
    c10::intrusive_ptr<Op> op;     // null: no recipe
    c10::SmallVector<const c10::StorageImpl*, 4> touched;
    c10::SmallVector<Written, 1> writes;
    c10::SmallVector<Token*, 4> waiting;
    int unwritten = -1;  // argument that its schema says it writes, and it does not
    bool may_make(const c10::StorageImpl* storage) const;  // it, or a new version of it
    bool is_small_pick(const at::Tensor& result) const;
    bool touches(const c10::StorageImpl* storage) const;
    bool writes_to(const c10::StorageImpl* storage) const;
  };

  // Where recipes hold more than was dropped.
  struct Balance {
    std::vector<Op*> ops;       // that make what autograd has saved and the tape has dropped
    std::vector<Value*> roots;  // held for these ops alone
  };

  Recorder() = default;
  void end();
  // While forward runs, or when the outermost scope ends.
  enum class Weigh : uint8_t { SoFar, AtTheEnd };
  static constexpr uint8_t kWeighings = 2;  // while forward runs, of one op
  void hold_no_more_than_eager(Weigh weigh);
  void hold_no_more_than_eager_so_far();
  bool roots_pile_up();
  void put_settled_values_aside();
  Balance balance(Weigh weigh);
  bool is_held_for_recipes(const Value& value) const;
  static std::vector<c10::intrusive_ptr<Value>> results_to_hold(const Balance& balance);
  void hand_over(const Region& inner);
  void copy_what_may_change();
  void keep(Value& value) override;
  void drop(Value& value) override;
  void sever(Value& value) override;

  void prepare(Flight& flight, const torch::jit::Stack& stack, Birth birth);
  void take(Flight& flight, const at::Tensor& tensor, size_t arg, int element, Effect effect);
  Role take_written(Flight& flight, const at::Tensor& tensor, Effect effect);
  Written& note_write(
      Flight& flight, const c10::Storage& storage, const c10::VariableVersion& counter);
  void note_writes_to_the_same_memory(Flight& flight, const c10::Storage& storage);
  void hold_readers_of(const c10::Storage& storage, const c10::VariableVersion& counter);
  void forget_idle_readers(Value& root);
  void sever_idle_results(Value& root);
  std::vector<c10::intrusive_ptr<Value>> results_to_hold(Value& root);
  void hold(Value& value, c10::Storage bytes);
  void settle_aliases(Flight& flight);
  void save_what_is_overwritten(Flight& flight);

  c10::SmallVector<Made, 2> made_by(const Flight& flight, const torch::jit::Stack& stack) const;
  void ask(const Flight& flight, c10::SmallVectorImpl<Made>& made) const;
  template <typename Ask>
  void leave_note(std::unique_ptr<Note>& place, Ask&& ask) const;
  void show_observers(const Flight& flight, c10::SmallVectorImpl<Made>& made) const;
  void finish(Flight& flight, c10::SmallVectorImpl<Made>& made);
  void enter(Flight& flight, Made& made);
  void supersede(const Flight& flight, const Written& written);
  void note_opaque(const OpInfo& info, const torch::jit::Stack& stack);
  void count_kept(const c10::Storage& storage);
  void note_rebound(const at::Tensor& tensor, const at::Tensor& other);
  void abandon(Flight& flight);
  void bind_waiting(Flight& flight);
  void bind(Token& token);
  Decider* decider_of(const Region& region) const;

  c10::intrusive_ptr<Value> find(
      const c10::Storage& storage,
      const c10::VariableVersion& counter);  // of the tensor through which it is looked at
  c10::intrusive_ptr<Value> find_or_root(const at::Tensor& tensor);
  c10::intrusive_ptr<Value> describe(
      const c10::Storage& storage, const c10::VariableVersion& counter);
  void remember_aliases(
      const c10::Storage& storage, std::initializer_list<c10::VariableVersion> counters);
  c10::intrusive_ptr<Value> on_the_same_bytes(const c10::Storage& storage);
  void watch_overlapping(const c10::Storage& storage, Value& value);
  std::vector<c10::Storage> on_the_same_memory(const c10::Storage& storage) const;
  void set_current(const c10::StorageImpl* storage, c10::intrusive_ptr<Value> value);
  void forget_current(const Value& value);
  void note_made_here(const Value& value);
  void note_results_made_here(const OpInfo& info, const torch::jit::Stack& stack);
  void sweep();
  bool is_worth_a_sweep() const;
  static bool is_idle(const Value& value);
  bool is_of_a_dead_graph(const Value& value) const;
  bool is_saved_by_a_graph(const Value& value) const;
  void forget_what_is_idle();
  static void watch_origin(Value& value);
  bool is_made_here(const c10::Storage& storage);

  c10::intrusive_ptr<Tape> tape_;
  std::vector<std::shared_ptr<Scope>> scopes_;
  ska::flat_hash_map<const c10::StorageImpl*, Entry> table_;
  // Roots that autograd saved.
  ska::flat_hash_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> given_;
  size_t given_sweep_at_ = kSweepAt;
  WeakValues saved_values_;    // with a recipe, in the order they were saved
  WeakValues settled_values_;  // of these, weighed before
  struct NewRoot {
    c10::weak_intrusive_ptr<Value> value;
    bool was_in_use = false;
  };
  std::vector<NewRoot> new_roots_;
  size_t new_roots_look_at_ = 0;
  ska::flat_hash_map<const c10::StorageImpl*, Aliases> aliases_;
  ska::flat_hash_map<const c10::StorageImpl*, Opaque> opaque_;
  size_t opaque_sweep_at_ = kSweepAt;
  struct MadeHere {};
  WeakStorages<MadeHere>
      made_here_;  // storages of values that have become roots, or will when they are read
  ForeignMemory foreign_;
  size_t sweep_at_ = kSweepAt;
  size_t bytes_in_vain_ =
      0;  // of roots that recipes of dead values may hold, since the last sweep for that
  uint64_t order_ = 0;
  uint64_t order_of_sweep_ = 0;  // when idle values were forgotten last
  bool had_backward_ = false;    // inside the scope, since then
  const Flags* flags_ = nullptr;
  Flight* flight_ = nullptr;
};

}  // namespace retape::detail
