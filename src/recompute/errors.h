// The texts of errors that recording and replay raise.
#pragma once

#include "record/value.h"

#include <string>

namespace retape::detail {

// The error plain autograd raises for a saved tensor that was changed in place.
[[noreturn]] void throw_changed_in_place(const View& view, uint32_t version, uint32_t expected);

// A root that a recipe reads is no longer what it was.
[[noreturn]] void throw_root_changed(const Value& root);

// An op gave a storage of another size than in forward.
[[noreturn]] void throw_other_size(const Op& op, size_t expected, size_t got);

std::string where(const Region* region);

}  // namespace retape::detail
