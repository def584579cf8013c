#include "bindings.h"

#include <retape/dry_run.h>
#include <retape/flops.h>
#include <retape/memory.h>
#include <retape/memory_region.h>
#include <retape/replayed.h>

#include <pybind11/stl.h>

namespace retape::python {

namespace py = pybind11;

namespace {

const char* word(Phase phase) {
  switch (phase) {
    case Phase::Forward:
      return "forward";
    case Phase::Backward:
      return "backward";
    case Phase::Replay:
      return "replay";
  }
  return "";
}

}  // namespace

void bind_memory(py::module_& module) {
  py::class_<MemoryEvent>(module, "MemoryEvent")
      .def_readonly("bytes", &MemoryEvent::bytes)
      .def_readonly("current", &MemoryEvent::current)
      .def_readonly("id", &MemoryEvent::id)
      .def_readonly("op", &MemoryEvent::op)
      .def_readonly("region", &MemoryEvent::region)
      .def_readonly("shape", &MemoryEvent::shape)
      .def_property_readonly("phase", [](const MemoryEvent& e) { return word(e.phase); });

  py::class_<DryRun>(module, "DryRun")
      .def(py::init<>())
      .def_property_readonly("flops", &DryRun::flops)
      .def_static("is_on", &DryRun::is_on);

  py::class_<FlopCounter>(module, "FlopCounter")
      .def(py::init<>())
      .def_property_readonly("flops", &FlopCounter::flops);
  py::class_<MemoryRegion>(module, "MemoryRegion").def(py::init<std::string>());
  module.def("ops_replayed", &ops_replayed);

  py::class_<MemoryMeter>(module, "MemoryMeter")
      .def(
          py::init([](bool timeline, c10::Device device) {
            MeterOptions options;
            options.timeline = timeline;
            options.device = device;
            return std::make_unique<MemoryMeter>(options);
          }),
          py::arg("timeline"),
          py::arg("device"))
      .def_property_readonly("current", &MemoryMeter::current)
      .def_property_readonly("peak", &MemoryMeter::peak)
      .def_property_readonly("held", &MemoryMeter::held)
      .def_property_readonly("timeline", &MemoryMeter::timeline)
      .def("reset_peak", &MemoryMeter::reset_peak)
      .def("close", &MemoryMeter::close);
}

}  // namespace retape::python
