// A Python function `apply(layers, x)` as the stacking of a C++ model (models/stack.h).
#pragma once

#include "python_call.h"

#include <stack.h>

#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace retape::python {

// Layers run without the GIL, and errors of Python that pass through them (torch.utils.checkpoint
// stops a second run with one) arrive as what they were. `alive` is what layers need besides what
// they own: it lives as long as Python holds any of them.
inline pybind11::list as_functions(
    const std::vector<models::Layer>& layers, const std::shared_ptr<const void>& alive) {
  pybind11::list functions;
  for (const auto& layer : layers) {
    const auto call = [layer, alive](const at::Tensor& x) { return layer(x); };
    functions.append(
        pybind11::cpp_function(
            torch::wrap_pybind_function_no_gil(call), pybind11::name("layer"), pybind11::arg("x")));
  }
  return functions;
}

// Called without the GIL, or with it.
inline models::Stacking stacking(pybind11::object apply, std::shared_ptr<const void> alive) {
  return [held = shared(std::move(apply)), alive = std::move(alive)](
             const std::vector<models::Layer>& layers, at::Tensor x) {
    pybind11::gil_scoped_acquire gil;
    const auto result = (*held)(as_functions(layers, alive), std::move(x));
    if (!THPVariable_Check(result.ptr())) {
      throw pybind11::type_error(
          "[loss] expected apply(layers, x) to return the last layer's tensor, got " +
          std::string(Py_TYPE(result.ptr())->tp_name) +
          ". Fix: def apply(layers, x): ...; return x.");
    }
    return result.cast<at::Tensor>();
  };
}

}  // namespace retape::python
