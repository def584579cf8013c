// A transformer's sizes and switches, and those of its experts. The defaults are a model for tests.
#pragma once

#include <transformer/config.h>

namespace moe {

using torch::Tensor;

struct Config : transformer::Config {
  int64_t experts = 4;  // each an MLP with `hidden`
  int64_t experts_per_token = 2;
  double balance = 0.01;  // weight of the balance loss in the loss
};

}  // namespace moe
