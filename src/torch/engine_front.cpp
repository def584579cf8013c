// One of the places that change global state of libtorch (interceptor.cpp lists them).
//
// C++ has no default saved-tensor hooks, but autograd asks its engine for them. So an engine is
// put in front of the one that is there (Python's, in a Python process) and passes everything on
// to it except that question, which it answers itself on a thread with an open scope.
#include "torch/engine_front.h"

#include "torch/variable_hooks.h"

#include <retape/binding.h>

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
  Front(Engine& behind, HooksProvider provider) : behind_(behind), provider_(provider) {}

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
    return behind_.execute_with_graph_task(
        graph_task, std::move(graph_root), std::move(input_buffer));
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
    std::unique_ptr<torch::autograd::SavedVariableHooks> hooks;
    if (provider_(hooks)) {
      return hooks;
    }
    return behind_.get_default_saved_variable_hooks();
  }

 private:
  Engine& behind_;
  const HooksProvider provider_;
};

Engine* front = nullptr;
std::atomic<FirstScopeHook> first_scope_hook{nullptr};

Engine& front_engine() {
  return *front;
}

}  // namespace

void install_engine_front(HooksProvider provider) {
  static std::once_flag once;
  std::call_once(once, [provider] {
    install_variable_front();
    if (const auto hook = first_scope_hook.load()) {
      hook();
    }
    front = new Front(
        Engine::get_default_engine(), provider);  // lives as long as autograd's threads
    torch::autograd::set_default_engine_stub(&front_engine);
  });
}

}  // namespace retape::detail

void retape::set_first_scope_hook(FirstScopeHook hook) {
  detail::first_scope_hook.store(hook);
}
