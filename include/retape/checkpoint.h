// checkpoint: call a function now, forget what it saved for backward, bring that back when needed.
//
//   auto y = retape::checkpoint([&](at::Tensor x) { return mlp(norm(x)); }, x);
//
// By default backward replays the recorded ops: the function runs once, so captured state, caches,
// generators and running statistics are not touched a second time. Any callable, any arguments, any
// result. With gradients disabled, or under Eager, it is a plain call.
//
// Method::Rerun calls the function again in backward, for code whose kernels the dispatcher does
// not see (a library that writes through raw pointers):
//
//   retape::CheckpointOptions options;
//   options.method = retape::Method::Rerun;
//   auto y = retape::checkpoint(options, function, x, mask);
//
// Settings, autocast and generators are then as they were; tensors from outside that the function
// writes are put back; what it saves is compared with what forward saved, and a difference raises
// ReplayMismatch. Function and arguments are copied, as std::thread does: std::ref for a reference.
//
// options.rows = Rows(8) runs backward in slices of rows: less memory, and NOT bit for bit
// (rows.h).
#pragma once

#include <retape/eager.h>
#include <retape/error.h>
#include <retape/recompute.h>
#include <retape/rerun.h>
#include <retape/rows.h>
#include <retape/tensors.h>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <functional>
#include <optional>
#include <utility>

namespace retape {

enum class Method { Replay, Rerun };

struct CheckpointOptions {
  std::string name;  // of the region, for errors and reports
  Method method = Method::Replay;

  // Replay
  Policy policy = Policy::full().anchors(false);
  std::optional<Rows>
      rows;  // backward in slices: gradients equal to rounding, not to the bit (rows.h)

  // Rerun
  bool use_reentrant = false;      // a backward inside backward: no graph at all after forward
  bool preserve_rng_state = true;  // false: generators are left alone; other numbers are a mismatch
  bool early_stop = true;          // the second run ends after the last op that saved something
  bool check_determinism = true;   // false: what the second run saves is believed
  bool debug = false;              // a mismatch lists the ops of both runs
};

namespace detail {

// A call that can be made again.
template <typename Function, typename... Args>
struct Call {
  Function function;
  std::tuple<Args...> args;

  // Takes the tensors out of the arguments: from here on somebody else holds them.
  Tensors give_up_tensors() {
    Tensors tensors;
    each_tensor_of(args, [&](at::Tensor& tensor) { tensors.push_back(std::move(tensor)); });
    return tensors;
  }

  decltype(auto) run(const Tensors& tensors) {
    auto full = args;
    size_t next = 0;
    each_tensor_of(full, [&](at::Tensor& tensor) { tensor = tensors[next++]; });
    return std::apply(function, std::move(full));
  }
};

template <typename Function, typename... Args>
constexpr bool can_rerun = std::is_constructible_v<std::decay_t<Function>, Function> &&
    (std::is_copy_constructible_v<std::decay_t<Args>> && ...) &&
    std::is_invocable_v<std::decay_t<Function>&, std::decay_t<Args>...>;

inline RerunOptions rerun_options(const CheckpointOptions& options) {
  RerunOptions result;
  result.name = options.name;
  result.preserve_rng_state = options.preserve_rng_state;
  result.early_stop = options.early_stop;
  result.check_determinism = options.check_determinism;
  result.debug = options.debug;
  return result;
}

template <typename Result, typename Call>
Result rerun(const CheckpointOptions& options, std::shared_ptr<Call> call) {
  const auto inputs = call->give_up_tensors();
  RerunScope scope(
      rerun_options(options), inputs, [call](const Tensors& again) { call->run(again); });
  return call->run(inputs);
}

template <typename Result, typename Call>
Result rerun_reentrant(const CheckpointOptions& options, std::shared_ptr<Call> call) {
  if constexpr (std::is_void_v<Result> || std::is_reference_v<Result>) {
    throw UsageError(
        "[checkpoint] use_reentrant needs a function that returns a value. Fix: return the "
        "tensors.");
  } else {
    std::optional<Result> result;
    const auto first = std::make_shared<bool>(true);
    auto outputs = reentrant(
        rerun_options(options),
        call->give_up_tensors(),
        [&result, call, first](const Tensors& inputs) {
          Result found = call->run(inputs);
          Tensors tensors;
          each_tensor_of(found, [&](at::Tensor& tensor) { tensors.push_back(tensor); });
          if (*first) {  // `result` is still there
            *first = false;
            result.emplace(std::move(found));
          }
          return tensors;
        });
    size_t next = 0;
    each_tensor_of(*result, [&](at::Tensor& tensor) { tensor = outputs[next++]; });
    return std::move(*result);
  }
}

template <typename Result, typename Function, typename... Args>
Result in_rows(const CheckpointOptions& options, Function&& function, Args&&... args) {
  if constexpr (std::is_void_v<Result> || std::is_reference_v<Result>) {
    throw UsageError(
        "[checkpoint] rows needs a function that returns a value. Fix: return the tensors.");
  } else {
    Tensors inputs, outputs;
    (each_tensor_read(args, [&](const at::Tensor& tensor) { inputs.push_back(tensor); }), ...);
    RowsScope scope(*options.rows, options.policy, options.name, inputs);
    inputs.clear();
    Result result = std::invoke(std::forward<Function>(function), std::forward<Args>(args)...);
    each_tensor_of(result, [&](at::Tensor& tensor) { outputs.push_back(tensor); });
    outputs = scope.finish(outputs);
    if (!scope.warning().empty()) {
      TORCH_WARN(scope.warning());
    }
    size_t next = 0;
    each_tensor_of(result, [&](at::Tensor& tensor) { tensor = outputs[next++]; });
    return result;
  }
}

}  // namespace detail

template <typename Function, typename... Args>
std::invoke_result_t<Function, Args...> checkpoint(
    const CheckpointOptions& options, Function&& function, Args&&... args) {
  using Result = std::invoke_result_t<Function, Args...>;
  if (!c10::GradMode::is_enabled() || is_eager()) {
    return std::invoke(std::forward<Function>(function), std::forward<Args>(args)...);
  }
  if (options.rows) {
    if (options.method == Method::Rerun) {
      throw UsageError(
          "[checkpoint] rows are a way of replay; Method::Rerun has none. Fix: Method::Replay.");
    }
    return detail::in_rows<Result>(
        options, std::forward<Function>(function), std::forward<Args>(args)...);
  }
  if (options.method == Method::Rerun) {
    if constexpr (detail::can_rerun<Function, Args...>) {
      using Call = detail::Call<std::decay_t<Function>, std::decay_t<Args>...>;
      auto call = std::make_shared<Call>(
          Call{std::forward<Function>(function), {std::forward<Args>(args)...}});
      return options.use_reentrant ? detail::rerun_reentrant<Result>(options, std::move(call))
                                   : detail::rerun<Result>(options, std::move(call));
    } else {
      throw UsageError(
          "[checkpoint] Method::Rerun calls the function again later: expected arguments that can "
          "be "
          "copied and passed by value. Fix: std::ref for references, or Method::Replay.");
    }
  }
  Recompute scope(options.policy, options.name);
  return std::invoke(std::forward<Function>(function), std::forward<Args>(args)...);
}

template <
    typename Function,
    typename... Args,
    typename = std::enable_if_t<!std::is_same_v<std::decay_t<Function>, CheckpointOptions>>>
std::invoke_result_t<Function, Args...> checkpoint(Function&& function, Args&&... args) {
  static const CheckpointOptions kDefault;
  return checkpoint(kDefault, std::forward<Function>(function), std::forward<Args>(args)...);
}

}  // namespace retape
