// The dispatch key that shows Retape every op, and its switch.
#pragma once

#include <c10/core/DispatchKeySet.h>

namespace retape::detail {

// "Out-of-core key for deferred module initialization": above autocast and autograd, registered by
// nobody in torch 2.13 (the one library that used it, torchdistx, is archived).
constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

// Per thread, counted. While on, every op of the thread comes to the interceptor first.
void set_intercepting(bool on);

// Per thread, not counted: on besides, while there are outputs to look after (output_discard/).
void intercept_for_outputs(bool on);

}  // namespace retape::detail
