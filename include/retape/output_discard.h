// OutputDiscardCheckpoint: a checkpoint that also frees its own output, once its consumer has run.
//
//   retape::OutputDiscardCheckpoint ckpt;
//   auto h = ckpt.checkpoint([&](at::Tensor x) { return at::silu(up(x)); }, x);
//   auto z = down(h);                                 // saves h for its backward
//   ckpt.discard_output_and_register_recompute(z);    // the memory of h is free from here on
//
// When the gradient of z arrives, or when anything else reads h first, the recorded ops of the
// function are replayed and their result is put under the storage of h: views of it, what autograd
// saved and version counters stay as they are. The function itself runs once.
//
// A scope without any of this reaches the same memory: Recompute with Policy::cheap() drops what
// was saved of h, too. This class is for code that already has the calls in it.
//
// Stays where it is, without an error: an output that shares its storage with an argument
// (`x.to(kFloat)` of a float x), that cannot be replayed, that its consumer has changed in place,
// and everything when gradients are disabled. Refused with a UsageError, nothing freed: an output
// whose storage somebody outside the graph holds too (a cache that the function filled, numpy).
//
// Ownership: the graph and the storage own what is needed to bring it back; when they die, with or
// without discard and backward, so does that. One object may serve any number of calls.
// Threads: one object, one thread at a time. Backward on any thread.
// Cost: while an output is pending or discarded, ops of this thread and of backward look at their
// arguments first: a fraction of a microsecond each.
#pragma once

#include <retape/recompute.h>
#include <retape/tensors.h>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace retape {

class OutputDiscardCheckpoint;

namespace detail {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// One call, for checkpoint() and for language bindings. Destroyed without finish(), by an
// exception, it leaves nothing behind.
class RETAPE_API OutputDiscardCall {
 public:
  explicit OutputDiscardCall(OutputDiscardCheckpoint& owner);
  ~OutputDiscardCall();
  OutputDiscardCall(const OutputDiscardCall&) = delete;
  OutputDiscardCall& operator=(const OutputDiscardCall&) = delete;

  void given(const at::Tensor& argument);
  void made(const at::Tensor& result);

  // Closes the scope; the results may be discarded from now on. Returns which of them no recorded
  // op has made, though they are no arguments: they stay where they are.
  std::vector<size_t> finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace detail

class RETAPE_API OutputDiscardCheckpoint {
 public:
  explicit OutputDiscardCheckpoint(std::string name = "");  // of the region, for errors
  ~OutputDiscardCheckpoint();
  OutputDiscardCheckpoint(OutputDiscardCheckpoint&&) noexcept;
  OutputDiscardCheckpoint& operator=(OutputDiscardCheckpoint&&) noexcept;

  // Calls the function; its result is a tensor, or what each_tensor looks into (tensors.h).
  template <typename Function, typename... Args>
  auto checkpoint(Function&& function, Args&&... args) {
    using Result = std::decay_t<std::invoke_result_t<Function, Args...>>;
    static_assert(
        std::is_class_v<Result>,
        "expected a function that returns a tensor, or a tuple, pair, vector, optional or struct "
        "of tensors");
    detail::OutputDiscardCall call(*this);
    (detail::each_tensor_read(args, [&](const at::Tensor& t) { call.given(t); }), ...);
    Result result = std::invoke(std::forward<Function>(function), std::forward<Args>(args)...);
    detail::each_tensor_read(result, [&](const at::Tensor& t) { call.made(t); });
    call.finish();
    return result;
  }

  // Frees the outputs that `hook_tensor` was made from (the oldest call's, where that cannot be
  // seen) and returns how many bytes that were. Called again it frees nothing more. UsageError:
  // before any checkpoint(), or where somebody else holds an output's storage.
  size_t discard_output_and_register_recompute(const at::Tensor& hook_tensor);

  void clear();  // forgets calls that were not discarded; what was discarded comes back as always

 private:
  friend class detail::OutputDiscardCall;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace retape
