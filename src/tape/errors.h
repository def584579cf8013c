// The texts of errors that recording and replay raise.
#pragma once

#include "tape/value.h"

#include <retape/error.h>

#include <string>

namespace retape::detail {

// Throws it the way the language that runs backward wants it. Not under a tape's lock: for that the
// language may need a lock of its own, whose owner may be waiting for this one.
[[noreturn]] void raise(const UsageError& error);
[[noreturn]] void raise(const ReplayMismatch& error);

// The error plain autograd raises for a saved tensor that was changed in place.
[[noreturn]] void throw_changed_in_place(
    c10::ScalarType dtype, c10::IntArrayRef sizes, uint32_t version, uint32_t expected);

// Those below are thrown under a tape's lock, as they are: who has let go of it raises them.

// A root that a recipe reads is no longer what it was.
[[noreturn]] void throw_root_changed(const Value& root);

// An op gave a storage of another size than in forward.
[[noreturn]] void throw_other_size(const Op& op, size_t expected, size_t got);

// An op of a library that has been unloaded: raised.
[[noreturn]] void throw_op_gone(const Op& op);

std::string where(const Region* region);

}  // namespace retape::detail
