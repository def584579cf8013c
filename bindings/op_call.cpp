#include "op_call.h"

#include <retape/error.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/jit/python/pybind_utils.h>

namespace retape::python {

namespace py = pybind11;

namespace {

std::string shown(const py::handle& object) {
  return py::isinstance<py::str>(object) ? "\"" + object.cast<std::string>() + "\""
                                         : py::repr(object).cast<std::string>();
}

bool is_op(const py::handle& object, const char* kind) {
  return py::isinstance(object, py::module_::import("torch._ops").attr(kind));
}

}  // namespace

std::string op_name(const char* function, const py::handle& op) {
  if (py::isinstance<py::str>(op)) {
    return op.cast<std::string>();
  }
  if (is_op(op, "OpOverload")) {
    const auto schema = op.attr("_schema");
    return schema.attr("name").cast<std::string>() + "." +
        op.attr("_overloadname").cast<std::string>();
  }
  if (is_op(op, "OpOverloadPacket")) {
    return op.attr("_qualified_op_name").cast<std::string>();
  }
  throw UsageError(
      std::string("[") + function + "] expected op names or torch.ops objects, got " + shown(op) +
      ". Fix: \"aten::mm\", torch.ops.aten.mm or torch.ops.aten.mm.default.");
}

namespace {

// Schemas write dtypes, layouts and memory formats as numbers.
py::object in_python(const c10::IValue& value, const c10::Argument& argument) {
  if (value.isInt()) {
    auto type = argument.real_type();
    if (const auto optional = type->cast<c10::OptionalType>()) {
      type = optional->getElementType();
    }
    switch (type->kind()) {
      case c10::TypeKind::ScalarTypeType:
        return py::cast(static_cast<c10::ScalarType>(value.toInt()));
      case c10::TypeKind::LayoutType:
        return py::cast(static_cast<c10::Layout>(value.toInt()));
      case c10::TypeKind::MemoryFormatType:
        return py::cast(static_cast<c10::MemoryFormat>(value.toInt()));
      default:
        break;
    }
  }
  return torch::jit::toPyObject(value);
}

bool is_default(const c10::IValue& value, const c10::Argument& argument) {
  return argument.default_value().has_value() && value == *argument.default_value();
}

}  // namespace

std::vector<std::string> op_names(const char* function, const py::object& ops) {
  const bool one = py::isinstance<py::str>(ops) || is_op(ops, "OpOverload") ||
      is_op(ops, "OpOverloadPacket");
  if (one || !py::isinstance<py::iterable>(ops)) {
    throw UsageError(
        std::string("[") + function + "] expected a list of ops, got " + shown(ops) +
        ". Fix: [\"aten::mm\"] or [torch.ops.aten.mm.default].");
  }
  std::vector<std::string> names;
  for (const auto& op : ops) {
    names.push_back(op_name(function, op));
  }
  return names;
}

PythonOpCall in_python(const OpCall& call) {
  const auto& arguments = call.op.schema().arguments();
  size_t positional = 0;  // up to the last that is not its default
  py::dict kwargs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_default(call.args[i], arguments[i])) {
      continue;
    }
    if (arguments[i].kwarg_only()) {
      kwargs[py::str(arguments[i].name())] = in_python(call.args[i], arguments[i]);
    } else {
      positional = i + 1;
    }
  }
  py::tuple args(positional);
  for (size_t i = 0; i < positional; ++i) {
    args[i] = in_python(call.args[i], arguments[i]);
  }
  py::object output = py::none();
  if (call.outputs.size() == 1) {
    output = torch::jit::toPyObject(call.outputs[0]);
  } else if (!call.outputs.empty()) {
    py::tuple outputs(call.outputs.size());
    for (size_t i = 0; i < call.outputs.size(); ++i) {
      outputs[i] = torch::jit::toPyObject(call.outputs[i]);
    }
    output = std::move(outputs);
  }
  const auto op = torch::detail::getTorchApiFunction(call.op);
  return {
      py::reinterpret_borrow<py::object>(op),
      std::move(args),
      std::move(kwargs),
      std::move(output)};
}

}  // namespace retape::python
