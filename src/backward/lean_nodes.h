// Puts lean nodes (retape/lean.h) into the graph, right after forward made the stock ones.
#pragma once

#include "tape/op_info.h"

#include <retape/lean.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/operator_name.h>

namespace retape::detail {

// Puts a lean node in the place of the one that made the result; null: there is none for that op.
AfterOp lean_node_for(const c10::OperatorName& op);

}  // namespace retape::detail
