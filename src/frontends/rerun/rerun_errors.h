// The texts of errors that a second run raises.
#pragma once

#include "tape/op_info.h"

#include <retape/rerun.h>

#include <string>

namespace retape::detail {

// A function that ran again did not do what it did in forward: raised. `details` come after the
// fix.
[[noreturn]] void throw_rerun_differs(
    const RerunOptions& options, const std::string& what, const std::string& details = "");

// Two backward calls of one GraphExecGroup need a tensor that `op` (null: a custom function) saved.
[[noreturn]] void throw_overlap_in_group(const std::string& region, const OpInfo* op);

}  // namespace retape::detail
