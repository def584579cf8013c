// Ops outside of torch that may be replayed: known ones (op_lists.h), and those a user has named.
#pragma once

#include <retape/replayable.h>

#include <ATen/core/operator_name.h>

namespace retape::detail {

bool is_replayable(const c10::OperatorName& op);

}  // namespace retape::detail
