// AdamW in one fused kernel, the one that torch.optim.AdamW(fused=True) runs. torch::optim::AdamW
// computes the same in another order of roundings; with this one a run in C++ and its Python twin
// have the same bits.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <vector>

namespace train {

class AdamW {
 public:
  AdamW(const torch::nn::Module& model, double lr) : lr_(lr) {
    for (const auto& item : model.named_parameters()) {
      names.push_back(item.key());
      parameters.push_back(item.value());
      exp_avg.push_back(at::zeros_like(item.value()));
      exp_avg_sq.push_back(at::zeros_like(item.value()));
      steps.push_back(at::zeros({}, at::kFloat));
    }
  }

  void zero_grad() {
    for (auto& parameter : parameters) {
      parameter.mutable_grad().reset();
    }
  }

  void step() {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : parameters) {
      gradients.push_back(parameter.grad());
    }
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(
        parameters,
        gradients,
        exp_avg,
        exp_avg_sq,
        /*max_exp_avg_sqs=*/{},
        steps,
        lr_,
        /*beta1=*/0.9,
        /*beta2=*/0.999,
        /*weight_decay=*/1e-2,
        /*eps=*/1e-8,
        /*amsgrad=*/false,
        /*maximize=*/false);
  }

  std::vector<std::string> names;
  std::vector<at::Tensor> parameters, exp_avg, exp_avg_sq, steps;

 private:
  double lr_;
};

}  // namespace train
