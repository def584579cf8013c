#include "op_call.h"

#include <retape/error.h>

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

std::string op_name(const char* function, const py::handle& op) {
  if (py::isinstance<py::str>(op)) {
    return op.cast<std::string>();
  }
  if (is_op(op, "OpOverload")) {
    const auto schema = op.attr("_schema");
    return schema.attr("name").cast<std::string>() + "." + op.attr("_overloadname").cast<std::string>();
  }
  if (is_op(op, "OpOverloadPacket")) {
    return op.attr("_qualified_op_name").cast<std::string>();
  }
  throw UsageError(
      std::string("[Policy.") + function + "] expected op names or torch.ops objects, got " + shown(op) +
      ". Fix: \"aten::mm\", torch.ops.aten.mm or torch.ops.aten.mm.default.");
}

}  // namespace

std::vector<std::string> op_names(const char* function, const py::object& ops) {
  const bool one = py::isinstance<py::str>(ops) || is_op(ops, "OpOverload") || is_op(ops, "OpOverloadPacket");
  if (one || !py::isinstance<py::iterable>(ops)) {
    throw UsageError(
        std::string("[Policy.") + function + "] expected a list of ops, got " + shown(ops) +
        ". Fix: [\"aten::mm\"] or [torch.ops.aten.mm.default].");
  }
  std::vector<std::string> names;
  for (const auto& op : ops) {
    names.push_back(op_name(function, op));
  }
  return names;
}

}  // namespace retape::python
