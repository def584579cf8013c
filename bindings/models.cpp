// The C++ models (models/), for Python's verify and bench: what each computes, and its parameters.
#include "keywords.h"
#include "stacking.h"

#include <moe/model.h>
#include <pi05/batch.h>
#include <pi05/model.h>
#include <transformer/model.h>

#include <c10/util/ScopeExit.h>
#include <pybind11/stl.h>

#include <map>
#include <string>

namespace retape::python {

namespace py = pybind11;

namespace {

using Named = std::map<std::string, at::Tensor>;

Named parameters_of(const torch::nn::Module& model) {
  Named named;
  for (const auto& parameter : model.named_parameters()) {
    named.emplace(parameter.key(), parameter.value());
  }
  return named;
}

// `run` with each stack of layers run by `apply`, or as the model was made if that is None. Called
// with the GIL; forward runs without it.
template <typename Model, typename Run>
at::Tensor run_stacked(
    Model& model, const py::object& apply, std::shared_ptr<const void> alive, Run run) {
  auto before = model->config().stacking;
  const auto put_back = c10::make_scope_exit([&] { model->set_stacking(std::move(before)); });
  if (!apply.is_none()) {
    model->set_stacking(stacking(apply, std::move(alive)));
  }
  py::gil_scoped_release no_gil;
  return run();
}

// Each is a model with its batch. With layers=True each layer of it is a region; else nothing in it
// is recomputed.

class Transformer {
 public:
  explicit Transformer(const py::kwargs& given)
      : model_(config(given)),
        ids_(transformer::closed_form_ids(model_->config())) {}

  Named parameters() const { return parameters_of(*model_); }

  Named forward() {
    const auto output = model_->forward(ids_);
    return {{"ce", output.loss}, {"logits", output.logits}};
  }

  at::Tensor loss(const py::object& apply) {
    return run_stacked(model_, apply, nullptr, [&] { return model_->forward(ids_).loss; });
  }

  // The keywords that a mixture of experts has too.
  static Keywords& sizes(Keywords& keywords, transformer::Config& config, bool& layers) {
    return keywords.to("layers", layers)
        .to("dtype", config.dtype)
        .to("dropout", config.dropout)
        .to("depth", config.layers)
        .to("width", config.width)
        .to("heads", config.heads)
        .to("hidden", config.hidden)
        .to("vocabulary", config.vocabulary)
        .to("batch", config.batch)
        .to("tokens", config.tokens);
  }

 private:
  static transformer::Config config(const py::kwargs& given) {
    transformer::Config config;
    bool layers = false;
    Keywords keywords("Transformer", given);
    sizes(keywords, config, layers).done();
    config.stacking = layers ? models::replayed() : models::Stacking();
    return config;
  }

  transformer::Model model_;
  at::Tensor ids_;
};

class Moe {
 public:
  explicit Moe(const py::kwargs& given)
      : model_(config(given)),
        ids_(transformer::closed_form_ids(model_->config())) {}

  Named parameters() const { return parameters_of(*model_); }

  Named forward() {
    const auto output = model_->forward(ids_);
    return {{"ce", output.ce}, {"balance", output.balance}, {"logits", output.logits}};
  }

  at::Tensor loss(const py::object& apply) {
    return run_stacked(model_, apply, nullptr, [&] { return model_->forward(ids_).loss; });
  }

 private:
  static moe::Config config(const py::kwargs& given) {
    moe::Config config;
    bool layers = false;
    Keywords keywords("Moe", given);
    Transformer::sizes(keywords, config, layers)
        .to("experts", config.experts)
        .to("experts_per_token", config.experts_per_token)
        .to("balance", config.balance)
        .done();
    config.stacking = layers ? models::replayed() : models::Stacking();
    return config;
  }

  moe::Model model_;
  at::Tensor ids_;
};

class Pi05 {
 public:
  explicit Pi05(const py::kwargs& given)
      : model_(config(given)),
        batch_(pi05::closed_form_batch(model_->config())) {}

  Named parameters() const { return parameters_of(*model_); }

  // Both losses, and what the layers left in the cache.
  Named forward() {
    pi05::Cache cache;
    const auto losses = model_->forward(batch_, cache);
    Named named{{"mse", losses.mse}, {"ce", losses.ce}};
    for (const auto& [layer, entry] : cache) {
      named.emplace("cache." + std::to_string(layer) + ".key", entry.key);
      named.emplace("cache." + std::to_string(layer) + ".value", entry.value);
    }
    return named;
  }

  at::Tensor loss(const py::object& apply) {
    const auto cache = std::make_shared<pi05::Cache>();
    return run_stacked(model_, apply, cache, [&] {
      const auto losses = model_->forward(batch_, *cache);
      return losses.mse + losses.ce;
    });
  }

 private:
  static pi05::Config config(const py::kwargs& given) {
    pi05::Config config;
    bool layers = false, sdpa = false;
    Keywords("Pi05", given)
        .to("layers", layers)
        .to("sdpa", sdpa)
        .to("insulation", config.insulation)
        .to("dtype", config.dtype)
        .to("dropout", config.dropout)
        .to("depth", config.layers)
        .to("prefix_width", config.prefix_width)
        .to("prefix_hidden", config.prefix_hidden)
        .to("suffix_width", config.suffix_width)
        .to("suffix_hidden", config.suffix_hidden)
        .to("heads", config.heads)
        .to("kv_heads", config.kv_heads)
        .to("head_size", config.head_size)
        .to("batch", config.batch)
        .to("image_tokens", config.image_tokens)
        .to("language_tokens", config.language_tokens)
        .to("action_tokens", config.action_tokens)
        .to("vocabulary", config.vocabulary)
        .to("action_vocabulary", config.action_vocabulary)
        .to("chunk", config.chunk)
        .to("action_size", config.action_size)
        .done();
    config.attention = sdpa ? pi05::Attention::Sdpa : pi05::Attention::Eager;
    config.checkpointing = layers ? pi05::replayed() : pi05::Checkpointing();
    return config;
  }

  pi05::Model model_;
  pi05::Batch batch_;
};

template <typename Bound>
void bind(py::module_& module, const char* name) {
  py::class_<Bound>(module, name)
      .def(py::init<const py::kwargs&>())
      .def("parameters", torch::wrap_pybind_function(&Bound::parameters))
      .def("forward", torch::wrap_pybind_function_no_gil(&Bound::forward))
      .def("loss", torch::wrap_pybind_function(&Bound::loss), py::arg("apply") = py::none());
}

}  // namespace

}  // namespace retape::python

PYBIND11_MODULE(_models, module) {
  module.doc() = "C++ models that Retape is verified and measured on";
  retape::python::bind<retape::python::Transformer>(module, "Transformer");
  retape::python::bind<retape::python::Moe>(module, "Moe");
  retape::python::bind<retape::python::Pi05>(module, "Pi05");
}
