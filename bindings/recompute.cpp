#include "bindings.h"
#include "op_call.h"

#include <retape/binding.h>
#include <retape/error.h>
#include <retape/recompute.h>
#include <retape/replayable.h>

#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

namespace retape::python {

namespace py = pybind11;

namespace {

// A scope as a context manager: opened by `with`, readable afterwards.
class Scope {
 public:
  Scope(Policy policy, std::string name, bool timed)
      : policy_(std::move(policy)),
        name_(std::move(name)),
        timed_(timed) {}

  void enter() {
    if (scope_) {
      throw UsageError(
          "[recompute] the scope was opened before. Fix: make a new one for each `with`.");
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
  std::vector<KeptOp> kept_ops() const {
    return scope_ ? scope_->kept_ops() : std::vector<KeptOp>();
  }
  const std::string& name() const { return name_; }
  const Policy& policy() const { return policy_; }

 private:
  Policy policy_;
  std::string name_;
  bool timed_;
  std::unique_ptr<Recompute> scope_;
};

// Python sees more in it than its bytes. Ops of torch run without the GIL, and nobody reads
// attributes of what they save; what a custom Function saves comes back through ctx.saved_tensors.
bool has_identity(const at::Tensor& tensor) {
  PyObject* object = tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
  if (object == nullptr) {
    return false;
  }
  const auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  if (type != THPVariableClass && type != ParameterClass) {
    return true;
  }
  if (PyGILState_Check() == 0) {
    return false;
  }
  PyObject** attributes = _PyObject_GetDictPtr(object);
  return attributes != nullptr && *attributes != nullptr && PyDict_GET_SIZE(*attributes) > 0;
}

// What torch does past the dispatcher is shown to the tape from Python.
void patch_torch() {
  py::gil_scoped_acquire gil;
  py::module_::import("retape._torch_patches").attr("install")();
}

// Access to two private members, by the one way that the language has for it.
template <auto Hooks, auto Data>
struct Saved {
  friend auto& hooks_of(torch::autograd::SavedVariable& saved) { return saved.*Hooks; }
  friend auto& data_of(torch::autograd::SavedVariable& saved) { return saved.*Data; }
};
auto& hooks_of(torch::autograd::SavedVariable& saved);
auto& data_of(torch::autograd::SavedVariable& saved);
template struct Saved<
    &torch::autograd::SavedVariable::hooks_,
    &torch::autograd::SavedVariable::data_>;

// The user puts hooks on it: those of a scope make room.
void take_off_hooks(torch::autograd::SavedVariable& saved) {
  auto& hooks = hooks_of(saved);
  if (hooks && are_hooks_of_a_scope(*hooks)) {
    data_of(saved) = hooks->call_unpack_hook();
    hooks.reset();
  }
}

bool allows_mutation_on_saved_tensors() {
  py::gil_scoped_acquire gil;
  const auto graph = py::module_::import("torch.autograd.graph");
  return graph.attr("_allow_mutation_on_saved_tensors_enabled").cast<bool>();
}

CallEffects op_effects(
    const std::string& op,
    const std::string& overload,
    const py::args& args,
    const py::kwargs& kwargs) {
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), overload.c_str());
  return effects_of_call(
      handle, torch::jit::createStackForSchema(handle.schema(), args, kwargs, std::nullopt));
}

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
      .def_readonly("window_bytes", &Stats::window_bytes)
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
            ", window_bytes=" + std::to_string(s.window_bytes) +
            ", ops_replayed=" + std::to_string(s.ops_replayed) +
            ", replay_ns=" + std::to_string(s.replay_ns) + ")";
      });

  py::class_<KeptOp>(module, "KeptOp")
      .def_readonly("op", &KeptOp::op)
      .def_readonly("values", &KeptOp::values)
      .def_readonly("bytes", &KeptOp::bytes)
      .def("__repr__", [](const KeptOp& kept) {
        return "KeptOp(op='" + kept.op + "', values=" + std::to_string(kept.values) +
            ", bytes=" + std::to_string(kept.bytes) + ")";
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
      .def_property_readonly("kept_ops", &Scope::kept_ops)
      .def_property_readonly("name", &Scope::name)
      .def_property_readonly("policy", &Scope::policy);

  module.def("is_recording", &is_recording);
  module.def("will_write", [](const py::args& tensors) {  // or storages
    for (const auto& tensor : tensors) {
      if (torch::isStorage(tensor.ptr())) {
        will_write(THPStorage_Unpack(tensor.ptr()));
      } else {
        will_write(tensor.cast<at::Tensor>());
      }
    }
  });
  module.def(
      "replayable",
      [](const py::object& op) { replayable(op_name("replayable", op)); },
      py::arg("op"));
  module.def("replayable_ops", &replayable_ops);
  module.def("take_off_hooks", &take_off_hooks, py::arg("saved_tensor"));
  module.def("intercepted_keys", [] {
    std::vector<int> keys;
    for (const auto key : intercepted_keys()) {
      keys.push_back(static_cast<int>(key));
    }
    return keys;
  });
  module.def(
      "op_effects",
      [](const std::string& op,
         const std::string& overload,
         const py::tuple& args,
         const py::dict& kwargs) {
        const auto effects = op_effects(
            op,
            overload,
            py::reinterpret_borrow<py::args>(args),
            py::reinterpret_borrow<py::kwargs>(kwargs));
        py::dict result;
        result["writes"] = effects.writes;
        result["overwrites"] = effects.overwrites;
        result["recipe"] = effects.recipe;
        result["uninitialized"] = effects.uninitialized;
        return result;
      });

  set_identity_check(&has_identity);
  set_first_scope_hook(&patch_torch);
  set_stand_aside_check(&allows_mutation_on_saved_tensors);
}

}  // namespace retape::python
