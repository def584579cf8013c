// Which hooks a tensor that autograd saves gets: an observer's, a token of the recorder, or none.
#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace retape::detail {

bool hooks_of_this_thread(std::unique_ptr<torch::autograd::SavedVariableHooks>& hooks);

}  // namespace retape::detail
