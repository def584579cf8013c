// Sizes and switches of the model. The defaults are a model for tests.
#pragma once

#include <stack.h>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace transformer {

using torch::Tensor;

struct Config {
  int64_t layers = 3;
  int64_t width = 16, heads = 2, hidden = 32;
  int64_t vocabulary = 23;
  int64_t batch = 2, tokens = 12;

  torch::Dtype dtype =
      torch::kFloat32;  // of weights and activations; norms and softmax compute in float32
  double dropout = 0;   // of attention weights, and of what joins the stream
  double norm_eps = 1e-6;
  models::Stacking stacking;
};

}  // namespace transformer
