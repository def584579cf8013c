// GradCheck for Python: the check is C++'s; what it calls is Python's.
#include "bindings.h"
#include "python_call.h"

#include <retape/dist/gradcheck.h>
#include <retape/dist/row_random.h>

#include <pybind11/stl.h>

namespace retape::python {

namespace py = pybind11;

namespace {

using dist::Case;
using dist::GradCheck;
using dist::GradCheckOptions;
using dist::GradReport;
using dist::Outcome;

// An exception of a Python function on its way through C++. Other ranks get its first line, with
// its notes.
struct StepError : std::exception {
  explicit StepError(py::error_already_set raised)
      : error(std::make_shared<py::error_already_set>(std::move(raised))) {
    text = py::str(error->type().attr("__name__")).cast<std::string>() + ": " +
        py::str(error->value()).cast<std::string>();
    for (const auto& note : py::list(py::getattr(error->value(), "__notes__", py::list()))) {
      text += " " + py::str(note).cast<std::string>();
    }
  }
  const char* what() const noexcept override { return text.c_str(); }

  std::shared_ptr<py::error_already_set> error;
  std::string text;
};

// One that ends the program (KeyboardInterrupt, SystemExit): no std::exception, so that the check
// does not go on to unite outcomes. It abandons its group: others raise.
struct Interrupt {
  std::shared_ptr<py::error_already_set> error;
};

[[noreturn]] void pass_on(py::error_already_set error) {
  if (!error.matches(PyExc_Exception)) {
    throw Interrupt{std::make_shared<py::error_already_set>(std::move(error))};
  }
  throw StepError(std::move(error));
}

using Parts = std::tuple<
    std::map<std::string, std::optional<at::Tensor>>,
    std::map<std::string, std::optional<at::Tensor>>,
    std::map<std::string, double>,
    std::map<std::string, double>>;

// None is a tensor that is not defined.
std::map<std::string, at::Tensor> tensors_of(
    const std::map<std::string, std::optional<at::Tensor>>& given) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : given) {
    tensors[name] = tensor.value_or(at::Tensor());
  }
  return tensors;
}

// A function that takes a Case and returns four dicts.
GradCheck::Step step_of(py::object function) {
  return [held = shared(std::move(function))](const Case& what) {
    py::gil_scoped_acquire gil;
    try {
      const auto [gradients, parameters, norms, losses] = (*held)(what).cast<Parts>();
      return Outcome{tensors_of(gradients), tensors_of(parameters), norms, losses};
    } catch (py::error_already_set& error) {
      pass_on(std::move(error));
    }
  };
}

// For anything that C++ calls with numbers and texts.
template <typename... Arguments>
std::function<void(Arguments...)> callback_of(const py::object& function) {
  if (function.is_none()) {
    return nullptr;
  }
  return [held = shared(function)](Arguments... arguments) {
    py::gil_scoped_acquire gil;
    try {
      (*held)(arguments...);
    } catch (py::error_already_set& error) {
      pass_on(std::move(error));
    }
  };
}

GradReport run(
    const dist::Group& everyone,
    const py::object& reference,
    const py::object& distributed,
    const GradCheckOptions& options,
    const py::object& progress,
    const py::object& raised) {
  try {
    const GradCheck check(everyone, step_of(reference), step_of(distributed), options);
    const GradCheck::Progress on_progress = callback_of<int, int, const std::string&>(progress);
    const GradCheck::Raised on_raised = callback_of<const std::string&>(raised);
    py::gil_scoped_release no_gil;
    return check.run(on_progress, on_raised);
  } catch (const Interrupt& interrupt) {
    throw *interrupt.error;
  } catch (const StepError& raised) {
    throw *raised.error;
  }
}

void bind_case(py::module_& module) {
  py::class_<Case>(module, "Case", "One configuration in which a step is run.")
      .def(
          py::init<
              dist::Topology,
              std::map<std::string, double>,
              at::ScalarType,
              std::optional<at::ScalarType>,
              int,
              uint64_t,
              int>(),
          py::arg("topology"),
          py::arg("terms"),
          py::arg("dtype") = at::kDouble,
          py::arg("wire") = py::none(),
          py::arg("steps") = 0,
          py::arg("seed") = 0,
          py::arg("microbatches") = 1)
      .def_readonly("topology", &Case::topology)
      .def_readonly("terms", &Case::terms, "Coefficient of each term of the loss; 0: not computed.")
      .def_readonly("dtype", &Case::dtype, "Of parameters and computation.")
      .def_readonly("wire", &Case::wire, "dtype of what travels between ranks; None: dtype.")
      .def_readonly("steps", &Case::steps, "Of the optimizer; 0: gradients only.")
      .def_readonly("seed", &Case::seed)
      .def_readonly(
          "microbatches", &Case::microbatches, "That a step which accumulates takes its rows in.")
      .def(
          "cut",
          [](const Case& what, std::pair<int64_t, int64_t> rows) {
            std::vector<std::pair<int64_t, int64_t>> parts;
            for (const auto& part : what.cut({rows.first, rows.second})) {
              parts.emplace_back(part.begin, part.end);
            }
            return parts;
          },
          py::arg("rows"),
          "(begin, end) of a rank, by microbatch, of very different sizes.");
}

void bind_options(py::module_& module) {
  using dist::Term;
  py::class_<Term>(module, "Term", "A term of the loss.")
      .def(
          py::init(
              [](std::string name, double coefficient, std::vector<std::string> live, bool random) {
                return Term{std::move(name), coefficient, std::move(live), random};
              }),
          py::arg("name"),
          py::arg("coefficient") = 1.0,
          py::kw_only(),
          py::arg("live") = std::vector<std::string>(),
          py::arg("random") = false)
      .def_readonly("name", &Term::name)
      .def_readonly("coefficient", &Term::coefficient)
      .def_readonly("live", &Term::live)
      .def_readonly("random", &Term::random)
      .def("__repr__", [](const Term& term) {
        return "Term(" + py::repr(py::str(term.name)).cast<std::string>() + ", " +
            py::repr(py::float_(term.coefficient)).cast<std::string>() + ")";
      });

  using Named = std::vector<std::pair<std::string, dist::Topology>>;
  py::class_<GradCheckOptions>(module, "GradCheckOptions")
      .def(py::init<>())
      .def_readwrite("terms", &GradCheckOptions::terms)
      .def_property(
          "topologies",
          [](const GradCheckOptions& options) {
            Named named;
            for (const auto& [name, topology] : options.topologies) {
              named.emplace_back(name, topology);
            }
            return named;
          },
          [](GradCheckOptions& options, const Named& named) {
            options.topologies.clear();
            for (const auto& [name, topology] : named) {
              options.topologies.push_back({name, topology});
            }
          })
      .def_readwrite("dtypes", &GradCheckOptions::dtypes)
      .def_readwrite("wire", &GradCheckOptions::wire)
      .def_readwrite("steps", &GradCheckOptions::steps)
      .def_readwrite("microbatches", &GradCheckOptions::microbatches)
      .def_readwrite("replicated", &GradCheckOptions::replicated)
      .def_readwrite("ragged", &GradCheckOptions::ragged)
      .def_readwrite("empty", &GradCheckOptions::empty)
      .def_readwrite("mutations", &GradCheckOptions::mutations)
      .def_readwrite("tolerance", &GradCheckOptions::tolerance)
      .def_readwrite("may_be_dead", &GradCheckOptions::may_be_dead)
      .def_readwrite("seed", &GradCheckOptions::seed);
}

}  // namespace

void bind_gradcheck(py::module_& module) {
  bind_case(module);
  bind_options(module);
  py::class_<GradReport>(module, "GradReport")
      .def_property_readonly("kind", [](const GradReport& report) { return name_of(report.kind); })
      .def_property_readonly("exit_code", &GradReport::exit_code)
      .def("text", &GradReport::text)
      .def("json", &GradReport::json);
  module.def(
      "gradcheck",
      &run,
      py::arg("everyone"),
      py::arg("reference"),
      py::arg("distributed"),
      py::arg("options"),
      py::arg("progress") = py::none(),
      py::arg("raised") = py::none());
  module.def(
      "derived_tolerance",
      &dist::derived_tolerance,
      py::arg("dtype"),
      py::arg("wire") = py::none());
  module.def(
      "row_uniform",
      [](uint64_t seed,
         const std::string& name,
         std::pair<int64_t, int64_t> rows,
         const std::vector<int64_t>& sizes,
         at::ScalarType dtype) {
        return dist::row_uniform(seed, name, {rows.first, rows.second}, sizes, dtype);
      },
      py::arg("seed"),
      py::arg("name"),
      py::arg("rows"),
      py::arg("sizes"),
      py::arg("dtype") = at::kFloat,
      "Uniform numbers, [rows, *sizes], that depend on (seed, name, row of the global batch) "
      "alone.");
  module.def(
      "row_generator",
      &dist::row_generator,
      py::arg("seed"),
      py::arg("name"),
      py::arg("row"),
      "A CPU generator for one row of the global batch.");
}

}  // namespace retape::python
