#include "bindings.h"

#include <retape/rows.h>

#include <pybind11/stl.h>

namespace retape::python {

namespace py = pybind11;

void bind_rows(py::module_& module) {
  py::class_<RowsStats>(module, "RowsStats")
      .def_readonly("sliced", &RowsStats::sliced)
      .def_readonly("whole", &RowsStats::whole)
      .def_readonly("ops_replayed", &RowsStats::ops_replayed)
      .def_readonly("reason", &RowsStats::reason)
      .def("__repr__", [](const RowsStats& s) {
        return "RowsStats(sliced=" + std::to_string(s.sliced) +
            ", whole=" + std::to_string(s.whole) +
            ", ops_replayed=" + std::to_string(s.ops_replayed) + ", reason=\"" + s.reason + "\")";
      });

  py::class_<Rows>(
      module,
      "Rows",
      "Backward in slices of rows (tokens). NOT bit for bit: sums over rows are added up slice by "
      "slice.\n\n"
      "slices: how many. strict: a UsageError where rows cannot be told apart, in place of replay "
      "as a\n"
      "whole. stats: calls sliced, calls replayed whole and the reason of the last one, ops "
      "replayed.")
      .def(py::init<int64_t, bool>(), py::arg("slices"), py::arg("strict") = false)
      .def_property_readonly("slices", &Rows::slices)
      .def_property_readonly("strict", &Rows::strict)
      .def_property_readonly("stats", &Rows::stats)
      .def("__repr__", [](const Rows& self) {
        return "Rows(slices=" + std::to_string(self.slices()) +
            (self.strict() ? ", strict=True)" : ")");
      });

  using detail::RowsScope;
  using detail::Tensors;
  py::class_<RowsScope>(module, "RowsScope")
      .def(py::init<const Rows&, Policy, std::string, const Tensors&>())
      .def("finish", &RowsScope::finish, py::call_guard<py::gil_scoped_release>())
      .def("close", &RowsScope::close)
      .def_property_readonly("warning", &RowsScope::warning);
}

}  // namespace retape::python
