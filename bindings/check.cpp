#include "bindings.h"

#include <retape/check.h>

#include <pybind11/stl.h>

#include <string>

namespace retape::python {

namespace py = pybind11;

namespace {

// Of a library that stands between a line of the model and an op.
bool is_library(const std::string& file) {
  const auto has = [&](const char* part) { return file.find(part) != std::string::npos; };
  const bool model = has("/retape/subjects/") || has("/retape/hazards/") || has("/retape/_gpt.py");
  return !model && (has("/torch/") || has("/retape/") || file.front() == '<');
}

// The innermost line of the user's own: "model.py:31 in forward".
std::string source_of_this_line() {
  py::gil_scoped_acquire gil;
  py::object frame = py::reinterpret_steal<py::object>(
      reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  while (frame) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
    const auto file = code.attr("co_filename").cast<std::string>();
    if (!is_library(file)) {
      return file.substr(file.find_last_of('/') + 1) + ":" + std::to_string(PyFrame_GetLineNumber(raw)) +
          " in " + code.attr("co_name").cast<std::string>();
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return "";
}

}  // namespace

void bind_check(py::module_& module) {
  detail::set_source_finder(&source_of_this_line);

  py::class_<detail::FaultInfo>(module, "FaultInfo")
      .def_readonly("id", &detail::FaultInfo::id)
      .def_readonly("breaks", &detail::FaultInfo::breaks)
      .def_readonly("kind", &detail::FaultInfo::kind);
  module.def("faults", &detail::faults, "Faults that can be injected; none in a build without them.");
  module.def("inject", &detail::inject, py::arg("id"));
  module.def("is_injected", &detail::is_injected, py::arg("id"));
  module.def("fault_hit", &detail::fault_hit);
  module.def("fault_hits", &detail::fault_hits);
}

}  // namespace retape::python
