#include "bindings.h"
#include "python_call.h"

#include <retape/api.h>
#include <retape/error.h>

namespace {

// Borrowed: the module lives as long as the interpreter.
PyObject* usage_error = nullptr;
PyObject* replay_mismatch = nullptr;

// The engine carries Python's own exceptions across its threads; others become a RuntimeError.
void translate(const retape::Error& error) {
  pybind11::gil_scoped_acquire gil;
  const bool usage = dynamic_cast<const retape::UsageError*>(&error) != nullptr;
  PyErr_SetString(usage ? usage_error : replay_mismatch, error.what());
  retape::python::throw_python_error();
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  namespace py = pybind11;
  module.doc() = "Retape's C++ core";
  module.attr("__version__") = RETAPE_VERSION;
  module.attr("built_for_torch") = RETAPE_BUILT_FOR_TORCH;

  auto error = py::register_exception<retape::Error>(module, "Error", PyExc_RuntimeError);
  usage_error = py::register_exception<retape::UsageError>(module, "UsageError", error.ptr()).ptr();
  replay_mismatch =
      py::register_exception<retape::ReplayMismatch>(module, "ReplayMismatch", error.ptr()).ptr();
  retape::detail::set_error_translator(&translate);

  retape::python::bind_policy(module);
  retape::python::bind_recompute(module);
  retape::python::bind_rerun(module);
  retape::python::bind_rows(module);
  retape::python::bind_memory(module);
  retape::python::bind_output_discard(module);
  retape::python::bind_check(module);
  retape::python::bind_verify(module);
}
