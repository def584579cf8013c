#include "bindings.h"
#include "op_call.h"
#include "python_call.h"

#include <retape/error.h>
#include <retape/lean.h>
#include <retape/policy.h>

#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_cpp_function.h>

#include <pybind11/stl.h>

namespace retape::python {

namespace py = pybind11;

namespace {

// What a policy function is given: a copy, so that it may be kept.
struct Info {
  std::string op, overload, region;
  py::tuple sizes;
  py::object dtype;
  size_t bytes, output;
  bool cheap;
};

Info copied(const ValueInfo& info) {
  py::tuple sizes(info.sizes.size());
  for (size_t i = 0; i < info.sizes.size(); ++i) {
    sizes[i] = info.sizes[i];
  }
  auto dtype = py::reinterpret_borrow<py::object>(
      reinterpret_cast<PyObject*>(torch::getTHPDtype(info.dtype)));
  return {info.op, info.overload, info.region, sizes, dtype, info.bytes, info.output, info.cheap};
}

// An op's kernel is on the way out: there torch knows no errors but its own and Python's.
[[noreturn]] void raise_usage_error(const std::string& text) {
  PyErr_SetString(py::module_::import("retape._C").attr("UsageError").ptr(), text.c_str());
  throw_python_error();
}

Decision decision(const std::string& function, const std::string& op, const py::object& answer) {
  if (py::isinstance<py::bool_>(answer)) {
    return answer.cast<bool>() ? Decision::Keep : Decision::Drop;
  }
  if (py::isinstance<py::str>(answer)) {
    const auto word = answer.cast<std::string>();
    if (word == "keep") {
      return Decision::Keep;
    }
    if (word == "drop") {
      return Decision::Drop;
    }
  }
  raise_usage_error(
      "[Policy." + function + "] " + op +
      ": expected True, False, \"keep\" or \"drop\" from the policy function, got " +
      py::repr(answer).cast<std::string>() + ". Fix: return one of these.");
}

// The caller sees its own exception, not a wrapped one.
template <typename Function>
Decision asked(Function function) {
  py::gil_scoped_acquire gil;
  try {
    return function();
  } catch (py::error_already_set& error) {
    error.restore();
    throw_python_error();
  }
}

PolicyFunction from_callable(py::function function) {
  return [held = shared(std::move(function))](const ValueInfo& info) {
    return asked([&] {
      const auto op = info.op + (info.overload.empty() ? "" : "." + info.overload);
      return decision("function", op, (*held)(copied(info)));
    });
  };
}

OpPolicyFunction op_function_from_callable(py::function function) {
  return [held = shared(std::move(function))](const OpCall& call) {
    return asked([&] {
      const auto [op, args, kwargs, output] = in_python(call);
      return decision("selective", py::str(op), (*held)(op, args, kwargs, output));
    });
  };
}

}  // namespace

// A lean node is a stock node to whoever looks at grad_fn: its type, its name, what it has saved.
void show_lean_nodes_as_stock() {
  const py::object functions = py::module_::import("torch._C").attr("_functions");
  for (const auto& [type, stock] : detail::lean_types()) {
    const py::object shown = functions.attr(stock);
    torch::autograd::registerCppFunction(type, reinterpret_cast<PyTypeObject*>(shown.ptr()));
  }
}

void bind_policy(py::module_& module) {
  show_lean_nodes_as_stock();
  module.def("set_least_lean_bytes", &detail::set_least_lean_bytes, py::arg("bytes"));
  py::class_<Info>(module, "ValueInfo")
      .def_readonly("op", &Info::op)
      .def_readonly("overload", &Info::overload)
      .def_readonly("region", &Info::region)
      .def_readonly("sizes", &Info::sizes)
      .def_readonly("dtype", &Info::dtype)
      .def_readonly("bytes", &Info::bytes)
      .def_readonly("output", &Info::output)
      .def_readonly("cheap", &Info::cheap);

  py::class_<Policy>(module, "Policy")
      .def_static("none", &Policy::none, "Keep everything, as plain autograd does.")
      .def_static("full", &Policy::full, "Drop everything that can be replayed, but for anchors.")
      .def_static("cheap", &Policy::cheap, "Drop what cheap ops can replay; an exact min-cut.")
      .def_static(
          "function",
          [](py::function f) { return Policy::function(from_callable(std::move(f))); },
          py::arg("decide"),
          "Ask `decide(info)` of every new value: True or \"keep\", False or \"drop\".")
      .def_static(
          "selective",
          [](py::function f) { return Policy::selective(op_function_from_callable(std::move(f))); },
          py::arg("decide"),
          "Ask `decide(op, args, kwargs, output)` of every op that has run, for all of its "
          "results: True or\n"
          "\"keep\", False or \"drop\".")
      .def_static("named", &Policy::named, py::arg("name"))
      .def(
          "keep_ops",
          [](const Policy& p, const py::object& ops) {
            return p.keep_ops(op_names("Policy.keep_ops", ops));
          },
          py::arg("names"),
          "Keep results of these ops: names, OpOverloads or OpOverloadPackets.")
      .def(
          "drop_ops",
          [](const Policy& p, const py::object& ops) {
            return p.drop_ops(op_names("Policy.drop_ops", ops));
          },
          py::arg("names"),
          "Drop results of these ops: names, OpOverloads or OpOverloadPackets.")
      .def("anchors", &Policy::anchors, py::arg("on"))
      .def("lean", &Policy::lean, py::arg("on"))
      .def("describe", &Policy::describe)
      .def("__repr__", [](const Policy& p) { return "<retape.Policy " + p.describe() + ">"; });
}

}  // namespace retape::python
