#include <retape/verify_module.h>

#include <c10/core/GradMode.h>

#include <memory>

namespace retape {

namespace {

// A module's tensors, and what was in them.
class Kept {
 public:
  Kept(const torch::nn::Module& model, const NamedTensors& inputs) {
    c10::AutoGradMode no_graph(false);
    for (const auto& parameter : model.named_parameters()) {
      leaves_.emplace_back(parameter.key(), parameter.value());
    }
    leaves_.insert(leaves_.end(), inputs.begin(), inputs.end());
    for (const auto& buffer : model.named_buffers()) {
      buffers_.emplace_back(buffer.key(), buffer.value());
    }
    for (const auto* list : {&leaves_, &buffers_}) {
      for (const auto& [name, tensor] : *list) {
        values_.push_back(tensor.defined() ? tensor.detach().clone() : tensor);
        grads_.push_back(tensor.defined() ? tensor.grad() : tensor);
      }
    }
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  ~Kept() {
    put_back();
    each([&](const at::Tensor& tensor, size_t i) { tensor.mutable_grad() = grads_[i]; });
  }

  void put_back() const {
    c10::AutoGradMode no_graph(false);
    each([&](const at::Tensor& tensor, size_t i) { tensor.copy_(values_[i]); });
  }

  const NamedTensors& leaves() const { return leaves_; }
  const NamedTensors& buffers() const { return buffers_; }

 private:
  template <typename Visit>
  void each(Visit visit) const {
    size_t i = 0;
    for (const auto* list : {&leaves_, &buffers_}) {
      for (const auto& [name, tensor] : *list) {
        if (tensor.defined()) {
          visit(tensor, i);
        }
        ++i;
      }
    }
  }

  NamedTensors leaves_, buffers_;
  std::vector<at::Tensor> values_, grads_;  // of leaves, then of buffers
};

}  // namespace

Subject subject(torch::nn::Module& model, std::function<Outcome()> step, SubjectParts parts) {
  auto kept = std::make_shared<const Kept>(model, parts.inputs);
  return [kept, step = std::move(step), parts = std::move(parts)] {
    kept->put_back();
    Start start;
    start.forward = step;
    start.leaves = kept->leaves();
    start.buffers = [kept] { return kept->buffers(); };
    if (parts.optimizer) {
      start.optimize = parts.optimizer();
    }
    start.generators = parts.generators;
    return start;
  };
}

Subject subject(torch::nn::Module& model, std::function<at::Tensor()> step, SubjectParts parts) {
  const auto outcome = [step = std::move(step)] {
    Outcome outcome;
    outcome.losses = {{"loss", step()}};
    return outcome;
  };
  return subject(model, std::function<Outcome()>(outcome), std::move(parts));
}

}  // namespace retape
