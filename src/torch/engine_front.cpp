// One of the places that change global state of libtorch (record/interceptor.cpp lists them).
//
// C++ has no default saved-tensor hooks, but autograd asks its engine for them. So an engine is
// put in front of the one that is there (Python's, in a Python process) and passes everything on
// to it except that question, which it answers itself on a thread with an open scope.
#include "torch/engine_front.h"

#include "record/recorder.h"
#include "record/token.h"
#include "torch/variable_hooks.h"
#include "record/op_observer.h"

#include <retape/binding.h>

#include <ATen/SavedTensorHooks.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <atomic>
#include <mutex>

namespace retape::detail {

namespace {

using torch::autograd::Engine;

class Front final : public Engine {
 public:
  explicit Front(Engine& behind) : behind_(behind) {}

  torch::autograd::variable_list execute(
      const torch::autograd::edge_list& roots,
      const torch::autograd::variable_list& inputs,
      bool keep_graph,
      bool create_graph,
      bool accumulate_grad,
      const torch::autograd::edge_list& outputs) override {
    return behind_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }

  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task,
      c10::intrusive_ptr<torch::autograd::Node> graph_root,
      torch::autograd::InputBuffer&& input_buffer) override {
    return behind_.execute_with_graph_task(graph_task, std::move(graph_root), std::move(input_buffer));
  }

  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return behind_.make_anomaly_metadata();
  }

  void thread_on_exception(
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task,
      const c10::intrusive_ptr<torch::autograd::Node>& fn,
      std::exception& e) override {
    behind_.thread_on_exception(graph_task, fn, e);
  }

  void thread_init(
      int device,
      const std::shared_ptr<torch::autograd::ReadyQueue>& ready_queue,
      bool should_increment) override {
    behind_.thread_init(device, ready_queue, should_increment);
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (auto* watch = Watch::current(); watch != nullptr && ours(*watch)) {
      if (auto hooks = watch->hooks()) {
        return hooks;
      }
    }
    if (auto* recorder = Recorder::current(); recorder != nullptr && ours(*recorder)) {
      const auto* tensor = take_tensor_being_saved();
      const bool droppable = tensor == nullptr || recorder->may_drop(*tensor);
      return droppable ? std::make_unique<Token>(*recorder) : nullptr;
    }
    return behind_.get_default_saved_variable_hooks();
  }

 private:
  static bool ours(const Watch& watch) {
    return !at::SavedTensorDefaultHooks::get_tls_state().is_tracing && watch.innermost() && !watch.off();
  }

  // Hooks that the user pushed inside the scope are the innermost ones, so they win.
  static bool ours(Recorder& recorder) {
    const auto& hooks = at::SavedTensorDefaultHooks::get_tls_state();
    return !hooks.is_tracing && hooks.stack.size() <= recorder.region().hooks_outside &&
        !recorder.in_other_backward();
  }

  Engine& behind_;
};

Engine* front = nullptr;
std::atomic<FirstScopeHook> first_scope_hook{nullptr};

Engine& front_engine() {
  return *front;
}

}  // namespace

void install_engine() {
  static std::once_flag once;
  std::call_once(once, [] {
    install_variable_front();
    if (const auto hook = first_scope_hook.load()) {
      hook();
    }
    front = new Front(Engine::get_default_engine());  // lives as long as autograd's threads
    torch::autograd::set_default_engine_stub(&front_engine);
  });
}

}  // namespace retape::detail

void retape::set_first_scope_hook(FirstScopeHook hook) {
  detail::first_scope_hook.store(hook);
}
