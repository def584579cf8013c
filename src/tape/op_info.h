// OpInfo: what Retape knows of an operator before it runs: from its schema, its tags, its
// registrations, and from the lists in op_lists.h where those say nothing or lie.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <memory>
#include <string>

namespace retape::detail {

// Something that is done with the first result of an op right after it has run.
using AfterOp = void (*)(const at::Tensor& result);

struct OpInfo {
  c10::OperatorHandle handle;
  c10::OperatorName name;

  // Runs as a call of other ops, which are recorded in its place.
  bool is_composite = false;
  // Has an autograd kernel of its own, which calls what is recorded: the op itself, below autograd.
  bool has_own_autograd = false;
  bool passes_through = false;   // either
  c10::DispatchKeySet autocast;  // casts its arguments under these keys, then calls itself again

  size_t arguments = 0;
  size_t returns = 0;
  bool returns_tensors = false;
  bool is_view = false;      // returns its argument's storage, writes nothing
  bool has_recipe = false;   // may be replayed at all
  bool on_cpu_only = false;  // ... but not on a device whose kernel adds in any order
  bool picks = false;        // ... nor by a mask, nor less than what it picks from
  bool cheap = false;        // costs memory traffic only
  bool pointwise = false;    // looks at nothing but its elements
  bool random = false;       // draws from a generator
  int generator_arg = -1;
  bool several_generators = false;
  bool uninitialized = false;  // returns memory that nobody has written
  c10::SmallVector<uint16_t, 1>
      overwrites;       // of the arguments it writes, those it leaves nothing of
  int result_arg = -1;  // out=, the first: written in any case, the others perhaps only in training
  bool routes = false;  // integer results choose where data goes: ties could fall otherwise
  c10::SmallVector<uint16_t, 2> writes;   // arguments it writes, by its schema
  c10::SmallVector<uint16_t, 2> scratch;  // arguments it updates while `training` is set
  int training_arg = -1;
  bool is_custom = false;      // of a library outside of torch
  bool lifts = false;          // hands out a tensor that was made just now, past the dispatcher
  bool rebinds = false;        // gives its argument another storage, or that storage another size
  AfterOp after_op = nullptr;  // called with its first result, in scopes that let it
  std::shared_ptr<std::atomic<bool>> gone = std::make_shared<std::atomic<bool>>(
      false);  // deregistered

  bool changes_arguments() const { return !writes.empty() || !scratch.empty(); }

  // Views and questions: no value comes of them and none changes.
  bool makes_nothing() const { return is_view || (!returns_tensors && !changes_arguments()); }

  bool passes(c10::DispatchKeySet below) const {
    return passes_through || !(autocast & below).empty();
  }
};

// The argument that the op would write in training and now does not, so that what its schema calls
// written may be memory that nobody wrote (the noise of rrelu); -1: none.
int left_unwritten(const OpInfo& op, c10::ArrayRef<c10::IValue> args);

enum class Effect : uint8_t { Reads, Updates, UpdatesInForward, Overwrites };

// What this call does to an argument. UpdatesInForward: a statistic that its schema does not call
// written, which replay must not write again. Overwrites: nothing of what it held is left.
Effect effect_on(const OpInfo& op, c10::ArrayRef<c10::IValue> args, size_t argument);

// Where `after_op` comes from: asked once for each op that is met. Set once.
using AfterOpSource = AfterOp (*)(const c10::OperatorName& op);
void set_after_op_source(AfterOpSource source);

// What is known of operators is no longer right: they are described anew when they are next met.
void forget_op_infos();

// Lives as long as the process. Quick: a thread-local table in front of the shared one.
const OpInfo& op_info(const c10::OperatorHandle& handle);

}  // namespace retape::detail
