#include "bindings.h"

#include <retape/api.h>
#include <retape/error.h>

PYBIND11_MODULE(_C, module) {
  namespace py = pybind11;
  module.doc() = "Retape's C++ core";
  module.attr("__version__") = RETAPE_VERSION;
  module.attr("built_for_torch") = RETAPE_BUILT_FOR_TORCH;

  auto error = py::register_exception<retape::Error>(module, "Error", PyExc_RuntimeError);
  py::register_exception<retape::UsageError>(module, "UsageError", error.ptr());
  py::register_exception<retape::ReplayMismatch>(module, "ReplayMismatch", error.ptr());

  retape::python::bind_policy(module);
  retape::python::bind_recompute(module);
  retape::python::bind_memory(module);
}
