#include "bindings.h"
#include "python_call.h"

#include <retape/rerun.h>

#include <pybind11/stl.h>

namespace retape::python {

namespace py = pybind11;

namespace {

using detail::RerunOptions;
using detail::RerunScope;
using detail::Tensors;

PyObject* stop_rerun = nullptr;  // borrowed: the module lives as long as the interpreter

// A BaseException: `except Exception` in the function that is running again lets it pass.
void stop() {
  py::gil_scoped_acquire gil;
  PyErr_SetString(stop_rerun, "the second run has everything it needs");
  throw_python_error();
}

// Calls it with the GIL; its exceptions stay Python's, and being stopped is no exception.
template <typename Result>
std::function<Result(const Tensors&)> from_callable(py::function function) {
  return [held = shared(std::move(function))](const Tensors& inputs) -> Result {
    py::gil_scoped_acquire gil;
    try {
      if constexpr (std::is_void_v<Result>) {
        (*held)(inputs);
      } else {
        return (*held)(inputs).template cast<Result>();
      }
    } catch (py::error_already_set& error) {
      if (error.matches(stop_rerun)) {
        throw detail::StopRerun();
      }
      error.restore();
      throw_python_error();
    }
  };
}

RerunOptions options(
    std::string name,
    bool preserve_rng_state,
    bool early_stop,
    bool check_determinism,
    bool debug) {
  RerunOptions options;
  options.name = std::move(name);
  options.preserve_rng_state = preserve_rng_state;
  options.early_stop = early_stop;
  options.check_determinism = check_determinism;
  options.debug = debug;
  options.stop = &stop;
  return options;
}

// RerunScope as a context manager.
class Scope {
 public:
  Scope(RerunOptions options, Tensors inputs, py::function again)
      : options_(std::move(options)),
        inputs_(std::move(inputs)),
        again_(std::move(again)) {}

  void enter() {
    scope_ = std::make_unique<RerunScope>(
        options_, inputs_, from_callable<void>(std::move(again_)));
    inputs_.clear();
  }
  void exit() { scope_.reset(); }

 private:
  RerunOptions options_;
  Tensors inputs_;
  py::function again_;
  std::unique_ptr<RerunScope> scope_;
};

}  // namespace

void bind_rerun(py::module_& module) {
  stop_rerun = PyErr_NewException("retape._C.StopRerun", PyExc_BaseException, nullptr);
  module.add_object("StopRerun", py::handle(stop_rerun));

  py::class_<RerunOptions>(module, "RerunOptions")
      .def(
          py::init(&options),
          py::arg("name"),
          py::arg("preserve_rng_state"),
          py::arg("early_stop"),
          py::arg("check_determinism"),
          py::arg("debug"));

  py::class_<Scope>(module, "RerunScope")
      .def(py::init<RerunOptions, Tensors, py::function>())
      .def("__enter__", &Scope::enter)
      .def("__exit__", [](Scope& self, const py::args&) { self.exit(); });

  module.def("reentrant", [](RerunOptions options, const Tensors& inputs, py::function body) {
    auto function = from_callable<Tensors>(std::move(body));
    py::gil_scoped_release no_gil;
    return detail::reentrant(std::move(options), inputs, std::move(function));
  });
}

}  // namespace retape::python
