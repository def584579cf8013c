#include "bindings.h"

#include <retape/error.h>
#include <retape/recompute.h>

#include <pybind11/stl.h>

namespace retape::python {

namespace py = pybind11;

namespace {

// A scope as a context manager: opened by `with`, readable afterwards.
class Scope {
 public:
  Scope(Policy policy, std::string name, bool timed)
      : policy_(std::move(policy)), name_(std::move(name)), timed_(timed) {}

  void enter() {
    if (scope_) {
      throw UsageError("[recompute] the scope was opened before. Fix: make a new one for each `with`.");
    }
    scope_ = std::make_unique<Recompute>(policy_, name_, timed_);
  }

  void close() {
    if (!scope_) {
      throw UsageError("[recompute] the scope is not open. Fix: use it in a `with` statement.");
    }
    scope_->close();
  }

  Stats stats() const { return scope_ ? scope_->stats() : Stats(); }
  const std::string& name() const { return name_; }
  const Policy& policy() const { return policy_; }

 private:
  Policy policy_;
  std::string name_;
  bool timed_;
  std::unique_ptr<Recompute> scope_;
};

}  // namespace

void bind_recompute(py::module_& module) {
  py::class_<Stats>(module, "Stats")
      .def_readonly("ops_recorded", &Stats::ops_recorded)
      .def_readonly("values_saved", &Stats::values_saved)
      .def_readonly("values_kept", &Stats::values_kept)
      .def_readonly("values_dropped", &Stats::values_dropped)
      .def_readonly("bytes_kept", &Stats::bytes_kept)
      .def_readonly("bytes_given", &Stats::bytes_given)
      .def_readonly("bytes_dropped", &Stats::bytes_dropped)
      .def_readonly("anchors", &Stats::anchors)
      .def_readonly("bytes_anchored", &Stats::bytes_anchored)
      .def_readonly("ops_replayed", &Stats::ops_replayed)
      .def_readonly("replay_ns", &Stats::replay_ns)
      .def("__repr__", [](const Stats& s) {
        return "Stats(ops_recorded=" + std::to_string(s.ops_recorded) +
            ", values_saved=" + std::to_string(s.values_saved) +
            ", values_kept=" + std::to_string(s.values_kept) +
            ", values_dropped=" + std::to_string(s.values_dropped) +
            ", bytes_kept=" + std::to_string(s.bytes_kept) +
            ", bytes_given=" + std::to_string(s.bytes_given) +
            ", bytes_dropped=" + std::to_string(s.bytes_dropped) +
            ", anchors=" + std::to_string(s.anchors) +
            ", bytes_anchored=" + std::to_string(s.bytes_anchored) +
            ", ops_replayed=" + std::to_string(s.ops_replayed) +
            ", replay_ns=" + std::to_string(s.replay_ns) + ")";
      });

  py::class_<Scope>(module, "Scope")
      .def(
          py::init<Policy, std::string, bool>(),
          py::arg("policy"),
          py::arg("name") = "",
          py::arg("timed") = false)
      .def(
          "__enter__",
          [](py::object self) {
            self.cast<Scope&>().enter();
            return self;
          })
      .def(
          "__exit__",
          [](Scope& self, const py::args&) {
            self.close();
            return false;
          })
      .def("close", &Scope::close)
      .def_property_readonly("stats", &Scope::stats)
      .def_property_readonly("name", &Scope::name)
      .def_property_readonly("policy", &Scope::policy);

  module.def("is_recording", &is_recording);
}

}  // namespace retape::python
