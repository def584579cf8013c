// Ops as Python code names them.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

namespace retape::python {

// Names of ops given as dispatcher names, OpOverloads (exactly that overload) or OpOverloadPackets
// (all of them). UsageError, in the name of `function`, for anything else.
std::vector<std::string> op_names(const char* function, const pybind11::object& ops);

}  // namespace retape::python
