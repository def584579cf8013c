// Value and Op: the graph on the tape.
//
// A value is the bytes of one storage at one version. It was made by an op (its recipe) or it was
// given (a root). An op owns the values it reads; a value owns its recipe; a token of autograd owns
// the value it will ask for. Nothing else owns anything, so what no token can reach is gone.
//
//   token ──▶ Value ──▶ Op ──▶ Value ──▶ Op ──▶ root Value (holds its storage)
//
// Threads: every field is guarded by the lock of the tape (tape.h).
#pragma once

#include "residency/given_writes.h"
#include "tape/flags.h"
#include "tape/op_info.h"
#include "tape/pooled.h"
#include "tape/rng_snapshot.h"
#include "tape/tape_observer.h"
#include "tape/view.h"
#include "torch/version_counters.h"

#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>

namespace retape::detail {

struct Op;
struct Region;

enum class Hold : uint8_t {
  None,      // forgotten, or alive only because somebody else holds its storage
  Kept,      // held until the graph lets go of it
  Replayed,  // brought back, held until its last use
};

// One input of an op. It knows its place in the value's list of readers, so that either can go
// first.
struct Reader {
  Op* op;
  uint32_t input;
};

struct Value final : c10::intrusive_ptr_target, Pooled<Value> {
  ~Value() override;

  c10::intrusive_ptr<Op> recipe;   // null: a root, or kept for good
  uint32_t slot = 0;               // which of the recipe's results
  std::shared_ptr<Region> region;  // where it was made

  c10::Storage data;
  Hold hold = Hold::None;
  c10::weak_intrusive_ptr<c10::StorageImpl> home = nullptr_storage();  // where forward had it
  Versions versions;                                                   // of the tensors seen there
  // The tensor that its op returned below autograd, until one is seen above: it may be wrapped
  // anew.
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> origin = no_origin();
  GivenWrites::Time made_at = GivenWrites::now();
  size_t nbytes = 0;
  uint8_t misalignment = 0;  // of its home; replay gives it the same (bytes.h)

  // Set when an op wrote to the storage under tokens of this value. A token whose counter has moved
  // raises; where it has not (.data, a counter that was put back) autograd would hand out the
  // changed bytes, so the token does. Recipes that read the value are not concerned.
  c10::Storage alias;

  std::unique_ptr<Note> note;  // of an observer of the tape

  // Of the tensor that backward was given of the replayed bytes: it must not write them.
  Versions::Seen lent_to_backward;

  bool uninitialized = false;   // root: memory nobody has written yet
  bool superseded = false;      // its home holds a later version by now
  bool copied = false;          // data is a copy of its own, not its home
  bool saved = false;           // autograd asked for it
  bool saved_itself = false;    // ... and holds the tensor, not a token
  bool leaf = false;            // root: a parameter, a buffer, an input without history
  bool discardable = false;     // an output that its caller may give up
  bool differentiable = false;  // a gradient flows through it
  bool owned_by_graph = false;  // root: a leaf that gets a gradient
  bool statistic = false;       // root: copied when the scope ends
  bool given = false;           // its home is not the tape's: a root's, of any version
  bool released = false;        // autograd has saved it and needs it no more
  bool made_here = false;       // root: on a storage that this scope has made
  bool lent = false;            // replayed, and the caller's storage is on the same bytes again

  uint32_t tokens = 0;                  // tokens alive
  c10::SmallVector<Reader, 1> readers;  // inputs of live ops that read it
  uint32_t done = 0;  // of tokens and readers, satisfied in the backward pass `pass`
  int pass = kNoPass;

  static constexpr int kNoPass = -2;

  // The bytes, if they can be had without replay: held, or alive in their home. Undefined if not;
  // what was held and has been changed is dropped then. A root that was changed in place or resized
  // behind the tape raises: it cannot come back.
  c10::Storage here();
  bool home_moved() const;  // changed in place since, in a way that its counter or a scope saw
  bool written_in_backward() const;  // the replayed bytes that it was given
  bool in_use_elsewhere() const;     // somebody but the tape holds its home

  void keep(c10::Storage storage);
  void drop();
  bool wanted(int current_pass) const;  // some use of it is still to come in this pass
  bool needed() const { return tokens > 0 || !readers.empty(); }  // by autograd, or by a recipe
  void release_resources() override;

 private:
  static c10::weak_intrusive_ptr<c10::StorageImpl> nullptr_storage();
  static c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> no_origin();
};

enum class Role : uint8_t {
  Read,
  Write,    // on a copy of the whole storage, which becomes the next version
  Fresh,    // overwritten: any memory of that size will do
  Scratch,  // updated in forward, not again: any memory of that size will do
};

struct Input {
  Input(c10::intrusive_ptr<Value> value, const at::Tensor& seen)
      : value(std::move(value)),
        view(seen) {}

  c10::intrusive_ptr<Value> value;  // null for Fresh and Scratch
  View view;
  size_t nbytes = 0;  // of the storage, for Fresh and Scratch
  uint8_t misalignment = 0;
  c10::DeviceType device = c10::kCPU;
  uint16_t arg = 0;
  int32_t element = -1;  // of a list argument
  uint32_t place = 0;    // among the readers of `value`
  Role role = Role::Read;
};

// A tensor list among the arguments.
struct ListArg {
  uint16_t arg;
  uint32_t size;
  bool optional;  // Tensor?[]
};

// A storage that the op made or rewrote, and the value that it was.
struct Result {
  Value* value;    // not owned; null once the value is gone
  int32_t source;  // n >= 0: tensor n of what the op returns; -n - 1: input n, as written
};

struct Op final : c10::intrusive_ptr_target, Pooled<Op> {
  ~Op() override;

  const OpInfo* info = nullptr;
  std::shared_ptr<Region> region;
  const Flags* flags = nullptr;           // interned
  uint64_t order = 0;                     // position in forward
  c10::SmallVector<c10::IValue, 6> args;  // tensors taken out
  c10::SmallVector<ListArg, 1> lists;
  c10::SmallVector<Input, 2> inputs;
  c10::SmallVector<Result, 1> results;
  std::unique_ptr<Draw> draw;
  int satisfied = Value::kNoPass;  // ran in this pass
  uint64_t planned = 0;            // plan it was last put on
  uint32_t place = 0;              // on that plan
  bool obeys = false;              // its results are dropped whatever that costs
  uint8_t weighings = 0;  // how often its roots were weighed while forward ran (record/balance.cpp)
  std::unique_ptr<Note> note;  // of an observer of the tape

  Input& add_input(c10::intrusive_ptr<Value> value, const at::Tensor& seen);
  void read(uint32_t index, c10::intrusive_ptr<Value> value);  // ... it has none yet
};

// A use of `value` is over: give up its bytes if it was the last one.
void settle(Value& value, int current_pass);

}  // namespace retape::detail
