// Answers autograd's question for saved-tensor hooks, on every thread.
#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace retape::detail {

// Called for each tensor that autograd saves. False: not ours, ask the engine that was there
// before. True: ours, with hooks or, where the tensor is better saved as it is, with null.
using HooksProvider = bool (*)(std::unique_ptr<torch::autograd::SavedVariableHooks>& hooks);

// Once per process; a later call does nothing.
void install_engine_front(HooksProvider provider);

}  // namespace retape::detail
