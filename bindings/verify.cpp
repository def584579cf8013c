#include "bindings.h"
#include "python_call.h"

#include <retape/check.h>
#include <retape/eager.h>
#include <retape/error.h>
#include <retape/verify.h>

#include <torch/csrc/autograd/autograd.h>

#include <pybind11/stl.h>

#include <optional>

namespace retape::python {

namespace py = pybind11;

namespace {

// An exception that ends the program (KeyboardInterrupt, SystemExit): no std::exception, so that it
// is not taken for a difference.
struct Interrupt {
  std::shared_ptr<py::error_already_set> error;
};

// The error that is set, or is being handled, as C++ carries it. With the GIL.
[[noreturn]] void pass_on(py::error_already_set error) {
  if (!error.matches(PyExc_Exception)) {
    throw Interrupt{std::make_shared<py::error_already_set>(std::move(error))};
  }
  throw error;
}

template <typename Call>
auto in_python(Call call) {
  try {
    return call();
  } catch (py::error_already_set& error) {
    pass_on(std::move(error));
  }
}

// None: none.
std::function<NamedTensors()> tensors_from(const py::object& callable) {
  if (callable.is_none()) {
    return nullptr;
  }
  return [held = shared(callable)] {
    return in_python([&] { return (*held)().cast<NamedTensors>(); });
  };
}

std::function<void()> action(const py::object& callable) {
  if (callable.is_none()) {
    return nullptr;
  }
  return [held = shared(callable)] { in_python([&] { (*held)(); }); };
}

Start start_of(const py::object& made) {
  Start start;
  start.forward = [held = shared(made.attr("forward"))] {
    return in_python([&] {
      auto [losses, outputs] = (*held)().cast<std::pair<NamedTensors, NamedTensors>>();
      return Outcome{std::move(losses), std::move(outputs)};
    });
  };
  start.leaves = made.attr("leaves").cast<NamedTensors>();
  start.buffers = tensors_from(py::getattr(made, "buffers", py::none()));
  start.states = tensors_from(py::getattr(made, "states", py::none()));
  start.optimize = action(py::getattr(made, "optimize", py::none()));
  start.generators = py::getattr(made, "generators", py::list()).cast<std::vector<at::Generator>>();
  return start;
}

// As Tensor.backward does: other threads may run Python's hooks meanwhile.
void backward(const at::Tensor& root, bool retain_graph) {
  try {
    py::gil_scoped_release no_gil;
    torch::autograd::backward({root}, {}, retain_graph);
  } catch (python_error& error) {
    error.restore();
    pass_on(py::error_already_set());
  }
}

using Tolerances = std::map<c10::ScalarType, std::pair<double, double>>;

std::map<c10::ScalarType, Tolerance> tolerance_of(const Tolerances& given) {
  std::map<c10::ScalarType, Tolerance> result;
  for (const auto& [dtype, pair] : given) {
    result[dtype] = {pair.first, pair.second};
  }
  return result;
}

Verdict run(
    const py::object& make_start,
    Policy policy,
    bool scope,
    int steps,
    bool orders,
    bool plain_twice,
    const Tolerances& tolerance,
    std::vector<std::string> regions,
    std::vector<std::string> may_be_dead) {
  VerifyOptions options;
  options.policy = std::move(policy);
  options.scope = scope;
  options.steps = steps;
  options.orders = orders;
  options.plain_twice = plain_twice;
  options.tolerance = tolerance_of(tolerance);
  options.regions = std::move(regions);
  options.may_be_dead = std::move(may_be_dead);
  try {
    return detail::verify(
        [&] { return in_python([&] { return start_of(make_start()); }); }, options, &backward);
  } catch (const Interrupt& interrupt) {
    throw *interrupt.error;
  } catch (const c10::Error& error) {  // of the plain run
    throw std::runtime_error(error.what_without_backtrace());
  }
}

// As context managers.
class EagerScope {
 public:
  void enter() { eager_.emplace_back(std::make_unique<Eager>()); }
  void exit() { eager_.pop_back(); }

 private:
  std::vector<std::unique_ptr<Eager>> eager_;
};

class ObserverScope {
 public:
  explicit ObserverScope(bool copies) { options_.copies = copies; }

  void enter() {
    if (observer_) {
      throw UsageError("[Observer] it was entered before. Fix: make a new one for each `with`.");
    }
    observer_ = std::make_unique<Observer>(options_);
  }
  void exit() {
    findings_ = findings();
    regions_ = regions();
    values_checked_ = values_checked();
    bytes_held_ = bytes_held();
    observer_.reset();
  }

  std::vector<Finding> findings() const { return observer_ ? observer_->findings() : findings_; }
  std::vector<SeenRegion> regions() const { return observer_ ? observer_->regions() : regions_; }
  uint64_t values_checked() const {
    return observer_ ? observer_->values_checked() : values_checked_;
  }
  uint64_t bytes_held() const { return observer_ ? observer_->bytes_held() : bytes_held_; }

 private:
  Observer::Options options_;
  std::unique_ptr<Observer> observer_;
  std::vector<Finding> findings_;
  std::vector<SeenRegion> regions_;
  uint64_t values_checked_ = 0, bytes_held_ = 0;
};

void bind_observer(py::module_& module) {
  py::class_<Finding>(module, "Finding")
      .def_readonly("kind", &Finding::kind)
      .def_readonly("op", &Finding::op)
      .def_readonly("region", &Finding::region)
      .def_readonly("source", &Finding::source)
      .def_readonly("what", &Finding::what);

  py::class_<SeenRegion>(module, "SeenRegion")
      .def_readonly("name", &SeenRegion::name)
      .def_readonly("ops_recorded", &SeenRegion::ops_recorded)
      .def_readonly("ops_replayed", &SeenRegion::ops_replayed)
      .def_readonly("reruns", &SeenRegion::reruns);

  py::class_<ObserverScope>(module, "Observer")
      .def(py::init<bool>(), py::arg("copies") = false)
      .def(
          "__enter__",
          [](py::object self) {
            self.cast<ObserverScope&>().enter();
            return self;
          })
      .def("__exit__", [](ObserverScope& self, const py::args&) { self.exit(); })
      .def_property_readonly("findings", &ObserverScope::findings)
      .def_property_readonly("regions", &ObserverScope::regions)
      .def_property_readonly("values_checked", &ObserverScope::values_checked)
      .def_property_readonly("bytes_held", &ObserverScope::bytes_held);

  py::class_<CheckStats>(module, "CheckStats")
      .def_readonly("steps", &CheckStats::steps)
      .def_readonly("values_checked", &CheckStats::values_checked);
  module.def("check_stats", &check_stats);
  module.def(
      "check_every",
      [](std::optional<uint64_t> n) {
        if (n) {
          check_every(*n);
        }
        return check_every();
      },
      py::arg("n") = py::none());
}

void bind_verdict(py::module_& module) {
  py::class_<Difference>(module, "Difference")
      .def_readonly("order", &Difference::order)
      .def_readonly("step", &Difference::step)
      .def_readonly("what", &Difference::what)
      .def_readonly("name", &Difference::name)
      .def_readonly("differing", &Difference::differing)
      .def_readonly("elements", &Difference::elements)
      .def_readonly("ulps", &Difference::ulps)
      .def_readonly("first", &Difference::first)
      .def_readonly("plain", &Difference::plain)
      .def_readonly("recomputed", &Difference::recomputed);

  py::class_<Verdict>(module, "Verdict")
      .def_property_readonly("kind", [](const Verdict& v) { return name_of(v.kind); })
      .def_readonly("differences", &Verdict::differences)
      .def_readonly("findings", &Verdict::findings)
      .def_readonly("vacuous", &Verdict::vacuous)
      .def_readonly("error", &Verdict::error)
      .def_readonly("with_tolerance", &Verdict::with_tolerance)
      .def_readonly("tensors_compared", &Verdict::tensors_compared)
      .def_readonly("values_checked", &Verdict::values_checked)
      .def_readonly("ops_replayed", &Verdict::ops_replayed)
      .def_readonly("reruns", &Verdict::reruns)
      .def_readonly("kept_ops", &Verdict::kept_ops)
      .def_readonly("orders", &Verdict::orders)
      .def_readonly("skipped", &Verdict::skipped)
      .def("add_vacuous", &Verdict::add_vacuous)
      .def("explain", &Verdict::explain)
      .def("__bool__", [](const Verdict& v) { return static_cast<bool>(v); })
      .def("__repr__", [](const Verdict& v) { return "<retape.Verdict " + v.explain() + ">"; });
}

}  // namespace

void bind_verify(py::module_& module) {
  py::class_<EagerScope>(module, "Eager")
      .def(py::init<>())
      .def("__enter__", &EagerScope::enter)
      .def("__exit__", [](EagerScope& self, const py::args&) { self.exit(); });
  module.def("is_eager", &is_eager);

  bind_observer(module);
  bind_verdict(module);
  module.def(
      "compare",
      [](const std::optional<at::Tensor>& plain,
         const std::optional<at::Tensor>& recomputed,
         const Tolerances& tolerance) {
        return compare(
            plain.value_or(at::Tensor()),
            recomputed.value_or(at::Tensor()),
            tolerance_of(tolerance));
      },
      py::arg("plain"),
      py::arg("recomputed"),
      py::arg("tolerance") = Tolerances());
  module.def(
      "verify",
      &run,
      py::arg("make_start"),
      py::kw_only(),
      py::arg("policy") = Policy::full(),
      py::arg("scope") = true,
      py::arg("steps") = 1,
      py::arg("orders") = false,
      py::arg("plain_twice") = true,
      py::arg("tolerance") = Tolerances(),
      py::arg("regions") = std::vector<std::string>(),
      py::arg("may_be_dead") = std::vector<std::string>());
}

}  // namespace retape::python
