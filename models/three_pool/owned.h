// Parameters that somebody owns: their gradients, their optimizer, and what is reported of them.
#pragma once

#include <retape/dist/case.h>

#include <three_pool/config.h>

namespace three_pool {

inline double weight_of(const retape::dist::Case& run, const std::string& term) {
  const auto found = run.terms.find(term);
  return found == run.terms.end() ? 0 : found->second;
}

class Owned {
 public:
  Owned(Named named, const Config& config)
      : named_(std::move(named)),
        adam_(
            tensors(), torch::optim::AdamWOptions(config.rate).weight_decay(config.weight_decay)) {}

  const Named& named() const { return named_; }

  std::vector<Tensor> tensors() const {
    std::vector<Tensor> tensors;
    for (const auto& [name, tensor] : named_) {
      tensors.push_back(tensor);
    }
    return tensors;
  }

  // Zeros, not undefined: whatever terms there are, the optimizer steps on the same parameters.
  void zero() {
    for (auto& [name, tensor] : named_) {
      tensor.mutable_grad() = at::zeros_like(tensor);
    }
  }

  void step() { adam_.step(); }

  void report_gradients(retape::dist::Outcome& outcome) const {
    for (const auto& [name, tensor] : named_) {
      outcome.gradients[name] = tensor.grad().clone();
    }
  }

  void report_parameters(retape::dist::Outcome& outcome) const {
    for (const auto& [name, tensor] : named_) {
      outcome.parameters[name] = tensor.detach().clone();
    }
  }

 private:
  Named named_;
  torch::optim::AdamW adam_;
};

}  // namespace three_pool
