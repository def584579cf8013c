// Sizes and switches of the model. The defaults are the tiny model of golden.json.
#pragma once

#include <pi05/checkpointing.h>

#include <stack.h>

namespace pi05 {

enum class Attention {
  Eager,  // scores and softmax in float32
  Sdpa,   // at::scaled_dot_product_attention, in the dtype of the model
};

struct Config {
  int64_t layers = 3;  // of each tower
  int64_t prefix_width = 16, prefix_hidden = 32;
  int64_t suffix_width = 8, suffix_hidden = 16;
  int64_t heads = 4, kv_heads = 2, head_size = 8;  // shared by both towers
  double norm_eps = 1e-6;
  double rope_theta = 10000;

  int64_t batch = 2;
  int64_t image_tokens = 4, language_tokens = 3, indicator_tokens = 1, action_tokens = 3;
  int64_t vocabulary = 11, action_vocabulary = 7;
  int64_t chunk = 5, action_size = 4;  // actions per sample, numbers per action

  Attention attention = Attention::Eager;
  torch::Dtype dtype = torch::kFloat32;  // of weights and activations; norms compute in float32
  double dropout = 0;
  bool insulation = true;       // the suffix's loss does not reach the prefix through the cache
  Checkpointing checkpointing;  // of each layer
  models::Stacking stacking;    // of a tower's layers, called with the checkpointing in them
};

}  // namespace pi05
