// checkpoint: call a function now, forget what it saved for backward, replay its ops when needed.
//
//   auto y = retape::checkpoint([&](at::Tensor x) { return mlp(norm(x)); }, x);
//
// The function runs once, in forward. Backward replays its recorded ops from what it was given, so
// captured state, caches, generators and running statistics are not touched a second time.
// Any callable, any arguments, any result. With gradients disabled it is a plain call.
#pragma once

#include <retape/recompute.h>

#include <c10/core/GradMode.h>

#include <functional>
#include <utility>

namespace retape {

struct CheckpointOptions {
  std::string name;  // of the region, for errors and reports
  Policy policy = Policy::full().anchors(false);
};

template <typename Function, typename... Args>
decltype(auto) checkpoint(const CheckpointOptions& options, Function&& function, Args&&... args) {
  if (!c10::GradMode::is_enabled()) {
    return std::invoke(std::forward<Function>(function), std::forward<Args>(args)...);
  }
  Recompute scope(options.policy, options.name);
  return std::invoke(std::forward<Function>(function), std::forward<Args>(args)...);
}

template <
    typename Function,
    typename... Args,
    typename = std::enable_if_t<!std::is_same_v<std::decay_t<Function>, CheckpointOptions>>>
decltype(auto) checkpoint(Function&& function, Args&&... args) {
  static const CheckpointOptions kDefault;
  return checkpoint(kDefault, std::forward<Function>(function), std::forward<Args>(args)...);
}

}  // namespace retape
