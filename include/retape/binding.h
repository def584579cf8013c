// What a language binding tells the core, and asks it. Programs in C++ need none of it.
#pragma once

#include <retape/api.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstddef>
#include <vector>

namespace retape {

// True for a tensor that its language sees as more than its bytes: an object of a subclass, or one
// with attributes. Such a tensor is never dropped, so that autograd hands out the object itself.
// Called while forward runs, for each tensor that autograd saves and that could be dropped.
using IdentityCheck = bool (*)(const at::Tensor& tensor);
RETAPE_API void set_identity_check(IdentityCheck check);

// Called once, before the first scope of the process opens.
using FirstScopeHook = void (*)();
RETAPE_API void set_first_scope_hook(FirstScopeHook hook);

// True where the language has hooks of its own around a scope that Retape must leave alone
// (Python's allow_mutation_on_saved_tensors): the scope then keeps everything. Asked when a scope
// opens inside saved-tensor hooks.
using StandAsideCheck = bool (*)();
RETAPE_API void set_stand_aside_check(StandAsideCheck check);

// True for hooks that a scope has put on a saved tensor. A language that lets its users put hooks
// on saved tensors takes these off first: with what they unpack in place of them.
RETAPE_API bool are_hooks_of_a_scope(const torch::autograd::SavedVariableHooks& hooks);

// The keys by which the core sees ops: a language with a dispatcher of its own lets them fall
// through.
RETAPE_API std::vector<c10::DispatchKey> intercepted_keys();

// What the core takes a call of an op for, as the tests that run every op check it.
struct CallEffects {
  std::vector<size_t> writes;      // arguments that it changes
  std::vector<size_t> overwrites;  // ... of which nothing is left, if the tensor covers its storage
  bool recipe = false;             // may be replayed
  bool uninitialized = false;      // returns memory that nobody has written
};
RETAPE_API CallEffects
effects_of_call(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments);

}  // namespace retape
