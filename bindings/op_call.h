// Ops, and calls of them, as Python code writes and sees them.
#pragma once

#include <retape/policy.h>

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

namespace retape::python {

// The name of an op given as a dispatcher name, an OpOverload (exactly that overload) or an
// OpOverloadPacket (all of them). UsageError, in the name of `function`, for anything else.
std::string op_name(const char* function, const pybind11::handle& op);

// Names of ops given as dispatcher names, OpOverloads (exactly that overload) or OpOverloadPackets
// (all of them). UsageError, in the name of `function`, for anything else.
std::vector<std::string> op_names(const char* function, const pybind11::object& ops);

// What a `__torch_dispatch__` handler would be given for the call, and what the op returned.
struct PythonOpCall {
  pybind11::object op;      // the OpOverload
  pybind11::tuple args;     // without trailing defaults
  pybind11::dict kwargs;    // keyword-only arguments that differ from their defaults
  pybind11::object output;  // None, a value, or a tuple of values
};

PythonOpCall in_python(const OpCall& call);

}  // namespace retape::python
