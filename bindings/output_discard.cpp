#include "bindings.h"

#include <retape/output_discard.h>

#include <pybind11/stl.h>

namespace retape::python {

namespace py = pybind11;

namespace {

// The C++ class with the function call taken apart: Python calls its function itself.
class Checkpoint {
 public:
  explicit Checkpoint(std::string name) : checkpoint_(std::move(name)) {}

  // `tensors_of` finds the tensors in a result, `function` takes nothing. Returns the result, and
  // which of its tensors no recorded op has made.
  std::pair<py::object, std::vector<size_t>> call(
      const py::function& function,
      const std::vector<at::Tensor>& given,
      const py::function& tensors_of) {
    detail::OutputDiscardCall call(checkpoint_);
    for (const auto& tensor : given) {
      call.given(tensor);
    }
    auto result = function();
    for (const auto& tensor : tensors_of(result).cast<std::vector<at::Tensor>>()) {
      call.made(tensor);
    }
    return {result, call.finish()};
  }

  size_t discard(const at::Tensor& hook_tensor) {
    py::gil_scoped_release no_gil;
    return checkpoint_.discard_output_and_register_recompute(hook_tensor);
  }

  void clear() { checkpoint_.clear(); }

 private:
  OutputDiscardCheckpoint checkpoint_;
};

}  // namespace

void bind_output_discard(py::module_& module) {
  py::class_<Checkpoint>(module, "OutputDiscardCheckpoint")
      .def(py::init<std::string>(), py::arg("name") = "")
      .def("call", &Checkpoint::call, py::arg("function"), py::arg("given"), py::arg("tensors_of"))
      .def("discard", &Checkpoint::discard, py::arg("hook_tensor"))
      .def("clear", &Checkpoint::clear);
}

}  // namespace retape::python
