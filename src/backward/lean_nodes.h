// Puts lean nodes (retape/lean.h) into the graph, right after forward made the stock ones.
#pragma once

#include <retape/lean.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/operator_name.h>

namespace retape::detail {

// Puts a lean node in the place of the one that made `result`.
using MakeLean = void (*)(const at::Tensor& result);

MakeLean lean_node_for(const c10::OperatorName& op);  // null: there is none

}  // namespace retape::detail
