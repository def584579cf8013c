#include "bindings.h"

#include <retape/memory.h>

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
      .def_property_readonly("phase", [](const MemoryEvent& e) { return word(e.phase); });

  py::class_<MemoryMeter>(module, "MemoryMeter")
      .def(
          py::init([](bool timeline) {
            MeterOptions options;
            options.timeline = timeline;
            return std::make_unique<MemoryMeter>(options);
          }),
          py::arg("timeline") = false)
      .def_property_readonly("current", &MemoryMeter::current)
      .def_property_readonly("peak", &MemoryMeter::peak)
      .def_property_readonly("held", &MemoryMeter::held)
      .def_property_readonly("timeline", &MemoryMeter::timeline)
      .def("reset_peak", &MemoryMeter::reset_peak)
      .def("close", &MemoryMeter::close);

  py::class_<DeviceMemory>(module, "DeviceMemory")
      .def_readonly("current", &DeviceMemory::current)
      .def_readonly("peak", &DeviceMemory::peak)
      .def_readonly("reserved", &DeviceMemory::reserved);
  module.def("device_memory", &device_memory, py::arg("device"));
  module.def("reset_device_peak", &reset_device_peak, py::arg("device"));
}

}  // namespace retape::python
