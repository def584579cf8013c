// Python functions that C++ holds and calls, from any thread.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>

namespace retape::python {

// Released under the GIL, wherever its last owner dies.
inline std::shared_ptr<pybind11::object> shared(pybind11::object callable) {
  return {new pybind11::object(std::move(callable)), [](pybind11::object* held) {
            pybind11::gil_scoped_acquire gil;
            delete held;
          }};
}

// Throws the Python error that is set, as autograd's engine and torch's bindings pass it on. With
// the GIL.
[[noreturn]] inline void throw_python_error() {
  python_error raised;
  raised.persist();
  throw raised;
}

}  // namespace retape::python
