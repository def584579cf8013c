// The parts of the Python module. No logic here: names, types, errors, the GIL.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace retape::python {

void bind_policy(pybind11::module_& module);
void bind_recompute(pybind11::module_& module);
void bind_memory(pybind11::module_& module);
void bind_output_discard(pybind11::module_& module);
void bind_rerun(pybind11::module_& module);
void bind_rows(pybind11::module_& module);
void bind_check(pybind11::module_& module);
void bind_verify(pybind11::module_& module);

}  // namespace retape::python
