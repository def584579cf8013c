// The C++ models (models/), for Python's verify: what each computes, and its parameters.
#include <pi05/batch.h>
#include <pi05/model.h>

#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include <map>
#include <string>

namespace {

namespace py = pybind11;

// One model with its batch. Its layers are recomputed if asked for; else nothing in it is.
class Pi05 {
 public:
  Pi05(bool sdpa, bool insulation, double dropout, bool layers, at::ScalarType dtype)
      : model_(config(sdpa, insulation, dropout, layers, dtype)),
        batch_(pi05::closed_form_batch(model_->config())) {}

  std::map<std::string, at::Tensor> parameters() const {
    std::map<std::string, at::Tensor> named;
    for (const auto& parameter : model_->named_parameters()) {
      named.emplace(parameter.key(), parameter.value());
    }
    return named;
  }

  // Both losses, and what the layers left in the cache.
  std::map<std::string, at::Tensor> forward() {
    pi05::Cache cache;
    const auto losses = model_->forward(batch_, cache);
    std::map<std::string, at::Tensor> named{{"mse", losses.mse}, {"ce", losses.ce}};
    for (const auto& [layer, entry] : cache) {
      named.emplace("cache." + std::to_string(layer) + ".key", entry.key);
      named.emplace("cache." + std::to_string(layer) + ".value", entry.value);
    }
    return named;
  }

 private:
  static pi05::Config config(bool sdpa, bool insulation, double dropout, bool layers, at::ScalarType dtype) {
    pi05::Config config;
    config.attention = sdpa ? pi05::Attention::Sdpa : pi05::Attention::Eager;
    config.insulation = insulation;
    config.dropout = dropout;
    config.dtype = dtype;
    if (layers) {
      config.checkpointing = pi05::replayed();
    }
    return config;
  }

  pi05::Model model_;
  pi05::Batch batch_;
};

}  // namespace

PYBIND11_MODULE(_models, module) {
  module.doc() = "C++ models that Retape is verified on";
  py::class_<Pi05>(module, "Pi05")
      .def(py::init<bool, bool, double, bool, at::ScalarType>(), py::arg("sdpa"), py::arg("insulation"),
          py::arg("dropout"), py::arg("layers"), py::arg("dtype"))
      .def("parameters", &Pi05::parameters)
      .def("forward", &Pi05::forward);
}
