// retape._dist: sums over ranks. Groups are made by torch.distributed, and found by their name.
#include "bindings.h"

#include <retape/dist/dist.h>

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

namespace retape::python {

namespace py = pybind11;
using namespace dist;

namespace {

using Span = std::pair<int64_t, int64_t>;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
constexpr auto kNoGil = py::call_guard<py::gil_scoped_release>();

// The last who holds a group waits for its threads, which may wait for the GIL to let go of a
// tensor.
struct DeleteWithoutGil {
  template <typename T>
  void operator()(T* held) const {
    const py::gil_scoped_release no_gil;
    delete held;
  }
};
template <typename T>
using Holder = std::unique_ptr<T, DeleteWithoutGil>;

void bind_topology(py::module_& module) {
  py::class_<Pool>(
      module, "Pool", "Ranks with a name, and the rows that each has; evenly cut unless said.")
      .def(
          py::init([](std::string name, std::vector<int> ranks, const std::vector<Span>& shards) {
            Pool pool{std::move(name), std::move(ranks), {}};
            for (const auto& [begin, end] : shards) {
              pool.shards.push_back({begin, end});
            }
            return pool;
          }),
          py::arg("name"),
          py::arg("ranks"),
          py::arg("shards") = std::vector<Span>())
      .def_readonly("name", &Pool::name)
      .def_readonly("ranks", &Pool::ranks)
      .def_property_readonly(
          "shards",
          [](const Pool& pool) {
            std::vector<Span> spans;
            for (const auto& shard : pool.shards) {
              spans.emplace_back(shard.begin, shard.end);
            }
            return spans;
          })
      .def_property_readonly("leader", &Pool::leader)
      .def("index_of", &Pool::index_of, py::arg("rank"), "-1 if it is not in the pool.")
      .def(
          "__repr__",
          [](const Pool& pool) {
            return "<Pool \"" + pool.name + "\" of ranks " +
                py::str(py::cast(pool.ranks)).cast<std::string>() + ">";
          })
      .def("__len__", &Pool::size);

  py::class_<Topology>(
      module,
      "Topology",
      "Which ranks there are, and which rows of the batch each pool gives them.")
      .def(
          py::init([](int64_t rows, std::vector<Pool> pools, const py::dict& groups) {
            std::vector<NamedRanks> named;
            for (const auto& [name, ranks] : groups) {
              named.push_back({name.cast<std::string>(), ranks.cast<std::vector<int>>()});
            }
            return Topology(rows, std::move(pools), std::move(named));
          }),
          py::arg("rows"),
          py::arg("pools"),
          py::arg("groups") = py::dict())
      .def_property_readonly("rows", &Topology::rows)
      .def_property_readonly("pools", &Topology::pools)
      .def_property_readonly(
          "groups",
          [](const Topology& topology) {
            py::dict groups;
            for (const auto& [name, ranks] : topology.groups()) {
              groups[py::cast(name)] = ranks;
            }
            return groups;
          },
          "Ranks by name, beside pools.")
      .def("ranks_of", &Topology::ranks_of, py::arg("name"), "A pool's ranks, or a group's.")
      .def_property_readonly("world_size", &Topology::world_size)
      .def("pool", &Topology::pool, py::arg("name"))
      .def(
          "overlap",
          [](const Topology& topology, const std::string& a, int i, const std::string& b, int j) {
            const auto rows = topology.overlap(a, i, b, j);
            return Span(rows.begin, rows.end);
          },
          py::arg("a"),
          py::arg("i"),
          py::arg("b"),
          py::arg("j"),
          "Rows (begin, end) that the i-th of one pool and the j-th of another both have.")
      .def(
          "__eq__",
          [](const Topology& a, const Topology& b) { return a.text() == b.text(); },
          py::is_operator())
      .def(
          "__hash__",
          [](const Topology& topology) { return std::hash<std::string>()(topology.text()); })
      .def("__repr__", [](const Topology& topology) {
        return "<Topology " + topology.text() + ">";
      });
}

Order order_of(bool ordered) {
  return ordered ? Order::ByRank : Order::Any;
}

// A tensor, or a Partial's.
at::Tensor summand(const char* function, const std::string& name, const py::object& given) {
  const auto kind = py::str(py::type::of(given).attr("__name__")).cast<std::string>();
  const auto value = kind == "Partial" ? py::object(given.attr("value")) : given;
  if (THPVariable_Check(value.ptr())) {
    return value.cast<at::Tensor>();
  }
  throw py::type_error(
      "[" + std::string(function) + "] '" + name + "': " +
      (kind == "Replicated" ? "a Replicated value in a sum would be counted once per rank. Fix: "
                              "retape.dist.contribute_once(name, replicated, group)."
                            : "expected a tensor or a Partial, got " + kind + "."));
}

// Ctrl-C, where a main thread waits for other ranks.
void look_for_signals() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) {
    throw py::error_already_set();
  }
}

// Calls `call`, and `interrupted` with what is raised there that ends the program
// (KeyboardInterrupt). No Python function can do that: a signal that came while C++ ran is raised
// where one begins, before its `try`.
py::cpp_function guarded(py::object call, py::object interrupted) {
  return py::cpp_function(
      [call = std::move(call), interrupted = std::move(interrupted)](const py::args& given) {
        try {
          call(*given);
        } catch (py::error_already_set& error) {
          if (error.matches(PyExc_Exception)) {
            throw;
          }
          interrupted(error.value());
        }
      });
}

Group group_of(
    std::string name,
    const std::string& group_name,
    std::vector<int> ranks,
    double timeout,
    std::optional<int> host) {
  GroupOptions options;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout * 1000));
  options.store_host = host;
  return Group(std::move(name), std::move(ranks), c10d::resolve_process_group(group_name), options);
}

void bind_group(py::module_& module) {
  module.def("_guarded", &guarded);
  module.def("leave", &leave, kNoGil, "Before this process ends: those who wait for it are told.");
  py::class_<Pending, Holder<Pending>>(module, "Pending", "A call under way.")
      .def("wait", &Pending::wait, kNoGil);

  py::class_<Group, Holder<Group>>(module, "Group")
      .def_static("_of", &group_of, kNoGil)
      .def_static(
          "alone", &Group::alone, py::arg("name"), py::arg("rank") = 0, "This process alone.")
      .def_property_readonly("name", &Group::name)
      .def_property_readonly("ranks", &Group::ranks)
      .def_property_readonly("size", &Group::size)
      .def_property_readonly("index", &Group::index, "Of this process, in the group.")
      .def_property_readonly("rank", &Group::rank, "Of this process, among all.")
      .def_property_readonly("leads", &Group::leads)
      .def_property_readonly(
          "timeout",
          [](const Group& group) { return std::chrono::duration<double>(group.timeout()).count(); },
          "Seconds that a call waits for others.")
      .def("_withdraw", &Group::withdraw, kNoGil)
      .def("_abandon", &Group::abandon, kNoGil)
      .def(
          "sum",
          [](const Group& group, const std::string& name, const py::object& given, bool ordered) {
            const auto tensor = summand("Group.sum", name, given);
            const py::gil_scoped_release no_gil;
            group.sum(name, tensor, order_of(ordered));
          },
          py::arg("name"),
          py::arg("tensor"),
          py::kw_only(),
          py::arg("ordered") = false,
          "In place. ordered: one rank after the other, as one process would add, and as many "
          "times the memory.")
      .def(
          "sum_async",
          [](const Group& group, const std::string& name, const py::object& given, bool ordered) {
            const auto tensor = summand("Group.sum_async", name, given);
            const py::gil_scoped_release no_gil;
            return group.sum_async(name, tensor, order_of(ordered));
          },
          py::arg("name"),
          py::arg("tensor"),
          py::kw_only(),
          py::arg("ordered") = false)
      .def(
          "broadcast",
          &Group::broadcast,
          py::arg("name"),
          py::arg("tensor"),
          py::arg("from_index") = 0,
          kNoGil)
      .def(
          "gather",
          &Group::gather,
          py::arg("name"),
          py::arg("tensor"),
          kNoGil,
          "One tensor per member.")
      .def("barrier", &Group::barrier, py::arg("name"), kNoGil)
      .def(
          "agree",
          py::overload_cast<const std::string&, const std::string&, const std::string&>(
              &Group::agree, py::const_),
          py::arg("name"),
          py::arg("text"),
          py::arg("complaint") = "",
          kNoGil,
          "Raises on every member where text is not the same on all, or where one has a complaint.")
      .def(
          "agree",
          py::overload_cast<const Topology&>(&Group::agree, py::const_),
          py::arg("topology"),
          kNoGil)
      .def("__len__", &Group::size)
      .def("__repr__", [](const Group& group) {
        return "<Group \"" + group.name() + "\" of " + std::to_string(group.size()) + ", index " +
            std::to_string(group.index()) + ">";
      });
}

void bind_sums(py::module_& module) {
  py::class_<SumReducer, Holder<SumReducer>>(module, "SumReducer")
      .def(
          py::init([](const Group& group,
                      int64_t bucket_bytes,
                      std::optional<at::ScalarType> wire,
                      bool check_finite,
                      bool ordered) {
            return SumReducer(
                group, ReducerOptions{bucket_bytes, wire, check_finite, order_of(ordered)});
          }),
          py::arg("group"),
          py::arg("bucket_bytes") = 25 << 20,
          py::arg("wire") = py::none(),
          py::arg("check_finite") = false,
          py::arg("ordered") = false)
      .def(
          "_add",
          [](SumReducer& reducer, const std::string& name, const at::Tensor& tensor) {
            reducer.add(name, Partial<at::Tensor>(tensor));
          })
      .def(
          "_add_gradients",
          [](SumReducer& reducer, const NamedTensors& named) { reducer.add_gradients(named); })
      .def("reduce", &SumReducer::reduce, kNoGil)
      .def("reduce_async", &SumReducer::reduce_async, kNoGil)
      .def("wait", &SumReducer::wait, kNoGil);

  module.def(
      "sum_async",
      [](const std::string& name,
         const at::Tensor& tensor,
         const Group& group,
         const std::string& contents) {
        return sum_async(name, Partial<at::Tensor>(tensor), group, contents);
      },
      kNoGil);
  module.def(
      "contribute_once",
      [](const std::string& name, const at::Tensor& value, const Group& group, int owner) {
        return contribute_once(name, Replicated<at::Tensor>(value), group, owner).value();
      },
      kNoGil);
  module.def(
      "contribute_once",
      [](const std::string& name,
         const at::Tensor& like,
         const std::function<at::Tensor()>& compute,
         const Group& group,
         int owner) {
        const auto replicated = [&] { return Replicated<at::Tensor>(compute()); };
        return contribute_once(name, like, replicated, group, owner).value();
      });
  module.def(
      "contribute_from",
      [](const std::string& name, const at::Tensor& value, const Group& group, int owner) {
        return contribute_from(name, value, group, owner).value();
      },
      kNoGil);
  py::class_<GlobalCount>(
      module, "GlobalCount", "How many there are on all ranks. Made by count_global alone.")
      .def_property_readonly("value", &GlobalCount::value)
      .def_property_readonly("ranks", &GlobalCount::ranks, "That have counted.")
      .def("__int__", &GlobalCount::value)
      .def("__repr__", [](const GlobalCount& count) {
        return "GlobalCount(" + std::to_string(count.value()) + ")";
      });
  module.def(
      "count_global", &count_global, py::arg("name"), py::arg("local"), py::arg("group"), kNoGil);
  py::class_<StepCounts, Holder<StepCounts>>(module, "StepCounts")
      .def(
          py::init([](const std::vector<std::pair<std::string, int64_t>>& local,
                      const Group& group) { return StepCounts(local, group); }),
          py::arg("local"),
          py::arg("group"),
          kNoGil)
      .def("__getitem__", &StepCounts::operator[]);
  module.def(
      "normalize",
      [](const at::Tensor& sum, const GlobalCount& count, const std::optional<Group>& group) {
        return (group ? normalize(sum, count, *group) : normalize(sum, count)).value();
      },
      kNoGil);
  module.def(
      "global_mean",
      &global_mean,
      py::arg("name"),
      py::arg("sum"),
      py::arg("count"),
      py::arg("group"),
      kNoGil);
  module.def(
      "global_residual",
      &global_residual,
      py::arg("name"),
      py::arg("local"),
      py::arg("group"),
      kNoGil);
  module.def(
      "clip_grad_norm",
      [](const std::vector<std::tuple<std::vector<at::Tensor>, Group, bool>>& given,
         double max_norm,
         const Group& everyone,
         double norm_type,
         bool error_if_nonfinite) {
        std::vector<Held> held;
        for (const auto& [parameters, replicas, elsewhere] : given) {
          held.push_back({parameters, replicas, elsewhere});
        }
        return clip_grad_norm(held, max_norm, everyone, {norm_type, error_if_nonfinite});
      },
      kNoGil);
}

void bind_edge(py::module_& module) {
  py::class_<Edge, Holder<Edge>>(
      module,
      "Edge",
      "Values that go from one pool to another by rows, and gradients that come back.")
      .def(
          py::init([](std::string name,
                      const Topology& topology,
                      const std::string& from,
                      const std::string& to,
                      const Group& both,
                      std::optional<at::ScalarType> wire) {
            return Edge(std::move(name), topology, from, to, both, EdgeOptions{wire});
          }),
          py::arg("name"),
          py::arg("topology"),
          py::arg("source"),
          py::arg("target"),
          py::arg("both"),
          py::arg("wire") = py::none())
      .def("send", &Edge::send, py::arg("name"), py::arg("rows"), kNoGil)
      .def("receive", &Edge::receive, py::arg("name"), py::arg("like"), kNoGil)
      .def(
          "send_gradient",
          [](const Edge& edge,
             const std::string& name,
             const std::optional<at::Tensor>& gradient,
             const at::Tensor& like) {
            edge.send_gradient(name, gradient.value_or(at::Tensor()), like);
          },
          py::arg("name"),
          py::arg("gradient"),
          py::arg("like"),
          kNoGil)
      .def("receive_gradient", &Edge::receive_gradient, py::arg("name"), py::arg("like"), kNoGil);
}

}  // namespace

void bind_gradcheck(py::module_& module);

}  // namespace retape::python

PYBIND11_MODULE(_dist, module) {
  namespace py = pybind11;
  module.doc() = "Sums over ranks";
  // Its base class, and how it is told to Python.
  const auto core = py::module_::import("retape._C");
  static PyObject* collective_error = py::exception<retape::CollectiveError>(
                                          module, "CollectiveError", core.attr("Error").ptr())
                                          .release()
                                          .ptr();
  py::register_local_exception_translator([](std::exception_ptr raised) {
    try {
      std::rethrow_exception(raised);
    } catch (const retape::CollectiveError& error) {
      py::object value = py::reinterpret_borrow<py::object>(collective_error)(error.what());
      value.attr("ranks") = py::cast(error.ranks());
      PyErr_SetObject(collective_error, value.ptr());
    }
  });
  retape::dist::set_while_waiting(&retape::python::look_for_signals);
  retape::python::bind_topology(module);
  retape::python::bind_group(module);
  retape::python::bind_sums(module);
  retape::python::bind_edge(module);
  retape::python::bind_gradcheck(module);
}
