#include "bindings.h"

#include <retape/check.h>

#include <pybind11/stl.h>

#include <string>

namespace retape::python {

namespace py = pybind11;

namespace {

// "…/site-packages/torch/": where a package lies, wherever the user's own folders may be.
std::string folder_of(const char* package) {
  return py::module_::import(package).attr("__path__").attr("__getitem__")(0).cast<std::string>() +
      "/";
}

// Of a library that stands between a line of the model and an op.
bool is_library(const std::string& file) {
  static const auto* torch = new std::string(folder_of("torch"));
  static const auto* ours = new std::string(folder_of("retape"));
  if (file.starts_with(*ours)) {
    const auto rest = file.substr(ours->size());
    return !(rest.starts_with("subjects/") || rest.starts_with("hazards/"));
  }
  return file.starts_with(*torch) || file.front() == '<';
}

// The innermost line of the user's own: "model.py:31 in forward".
std::string source_of_this_line() {
  py::gil_scoped_acquire gil;
  py::object frame = py::reinterpret_steal<py::object>(
      reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  while (frame) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code = py::reinterpret_steal<py::object>(
        reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
    const auto file = code.attr("co_filename").cast<std::string>();
    if (!is_library(file)) {
      return file.substr(file.find_last_of('/') + 1) + ":" +
          std::to_string(PyFrame_GetLineNumber(raw)) + " in " +
          code.attr("co_name").cast<std::string>();
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
  module.def(
      "faults", &detail::faults, "Faults that can be injected; none in a build without them.");
  module.def("inject", &detail::inject, py::arg("id"));
  module.def("is_injected", &detail::is_injected, py::arg("id"));
  module.def("fault_hit", &detail::fault_hit);
  module.def("fault_hits", &detail::fault_hits);
}

}  // namespace retape::python
