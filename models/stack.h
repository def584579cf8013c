// A stack of layers, and the ways in which a model may run it.
//
//   config.stacking = models::replayed();                 // Retape: each layer is a region
//   config.stacking = [](const std::vector<models::Layer>& layers, at::Tensor x) {
//     return second_half(layers, first_half(layers, x));   // whatever a method does with them
//   };
//
// In forward a model makes its layers into functions from the stream to the stream, and hands them
// over all at once: called one by one, in groups, wrapped, or again in backward.
// Ownership: a layer shares what it needs of the model, so it may be called after forward has
// returned and the model's owner is gone. What else it reads and writes, the model's header says.
#pragma once

#include <retape/checkpoint.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace models {

using Layer = std::function<at::Tensor(const at::Tensor&)>;

// Gives the first layer `x`, every other what the one before it returned, and returns what the last
// one did. An empty one stands for just that.
using Stacking = std::function<at::Tensor(const std::vector<Layer>& layers, at::Tensor x)>;

inline at::Tensor run_stack(
    const Stacking& stacking, const std::vector<Layer>& layers, at::Tensor x) {
  if (stacking) {
    return stacking(layers, std::move(x));
  }
  for (const auto& layer : layers) {
    x = layer(x);
  }
  return x;
}

// Retape: each layer is called once, backward replays what it recorded. Regions are named
// "layers.0", "layers.1".
inline Stacking replayed(retape::Policy policy = retape::CheckpointOptions().policy) {
  return [policy](const std::vector<Layer>& layers, at::Tensor x) {
    retape::CheckpointOptions options;
    options.policy = policy;
    for (size_t i = 0; i < layers.size(); ++i) {
      options.name = "layers." + std::to_string(i);
      x = retape::checkpoint(options, layers[i], x);
    }
    return x;
  };
}

}  // namespace models
