// Checkpointing by running the function again in backward, as others do it: a control for tests of
// code that does not bear to be run twice. Two kinds, after those of torch.utils.checkpoint:
//
// - rerun_checkpoint, "non-reentrant": forward builds its graph as always, with placeholders for
//   saved tensors; the first that backward asks for runs the function again, and what that run
//   saves takes their places. Only values are taken, never the graph of the second run.
// - reentrant_checkpoint: forward runs without a graph, as one custom Function; its backward runs
//   the function again, with a graph, and calls backward inside backward.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/input_buffer.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace retape::testing {

struct RerunOptions {
  bool preserve_rng = true;
};

// One call: how to make it again, and what the second time saved.
class RerunFrame {
 public:
  RerunFrame(std::function<void()> function, RerunOptions options)
      : function_(std::move(function)),
        options_(options),
        generator_state_(generator().get_state()) {}

  size_t place() { return places_++; }
  void take(const at::Tensor& saved) { values_.push_back(saved.detach()); }

  at::Tensor value(size_t place);

 private:
  static at::Generator generator() { return at::detail::getDefaultCPUGenerator(); }

  std::function<void()> function_;
  RerunOptions options_;
  at::Tensor generator_state_;
  size_t places_ = 0;
  int graph_task_ = -1;  // the backward that values_ are of; the next one runs again
  std::vector<at::Tensor> values_;
};

// What saving a tensor means on this thread: leave a placeholder (forward), or hand it to the frame
// that runs again.
struct Saving {
  enum class Mode { Leave, Take };

  Saving(std::shared_ptr<RerunFrame> frame, Mode mode) : frame(std::move(frame)), mode(mode) {
    current() = this;
  }
  ~Saving() { current() = outer; }
  Saving(const Saving&) = delete;
  Saving& operator=(const Saving&) = delete;

  static Saving*& current() {
    static thread_local Saving* saving = nullptr;
    return saving;
  }

  Saving* outer = current();
  std::shared_ptr<RerunFrame> frame;
  Mode mode;
};

class Placeholder final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Placeholder(const Saving& saving) : frame_(saving.frame), mode_(saving.mode) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    if (mode_ == Saving::Mode::Leave) {
      place_ = frame_->place();
    } else {
      frame_->take(tensor);
      frame_.reset();
    }
  }

  at::Tensor call_unpack_hook() override {
    TORCH_CHECK(frame_, "[rerun_checkpoint] the graph of the second run is not for use");
    return frame_->value(place_);
  }

 private:
  std::shared_ptr<RerunFrame> frame_;
  Saving::Mode mode_;
  size_t place_ = 0;
};

// C++ has no default saved-tensor hooks, but autograd asks its engine for them: an engine in front
// of the one that is there (Retape's, or torch's) answers while a frame is open.
class RerunEngine final : public torch::autograd::Engine {
 public:
  static void install() {
    static std::once_flag once;
    std::call_once(once, [] {
      front() = new RerunEngine(
          Engine::get_default_engine());  // lives as long as autograd's threads
      torch::autograd::set_default_engine_stub([]() -> Engine& { return *front(); });
    });
  }

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

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (const auto* saving = Saving::current()) {
      return std::make_unique<Placeholder>(*saving);
    }
    return behind_.get_default_saved_variable_hooks();
  }

 private:
  explicit RerunEngine(Engine& behind) : behind_(behind) {}

  static Engine*& front() {
    static Engine* engine = nullptr;
    return engine;
  }

  Engine& behind_;
};

inline at::Tensor RerunFrame::value(size_t place) {
  if (const auto task = torch::autograd::get_current_graph_task_id(); task != graph_task_) {
    graph_task_ = task;
    values_.clear();
    const auto state = generator().get_state();
    if (options_.preserve_rng) {
      generator().set_state(generator_state_);
    }
    {
      torch::AutoGradMode grad(true);
      // The frame is alive as long as the placeholder that asks, so it need not own itself.
      Saving saving(std::shared_ptr<RerunFrame>(this, [](RerunFrame*) {}), Saving::Mode::Take);
      function_();
    }
    if (options_.preserve_rng) {
      generator().set_state(state);
    }
    TORCH_CHECK(
        values_.size() == places_,
        "[rerun_checkpoint] saved ",
        places_,
        " tensors, then ",
        values_.size());
  }
  return values_.at(place);
}

// `function` takes nothing: what it needs it has captured, and that stays alive until backward.
template <typename Function>
auto rerun_checkpoint(RerunOptions options, Function function) {
  RerunEngine::install();
  auto frame = std::make_shared<RerunFrame>([function] { function(); }, options);
  Saving saving(frame, Saving::Mode::Leave);
  return function();
}

using TensorsFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

struct ReentrantRerun : torch::autograd::Function<ReentrantRerun> {
  static torch::autograd::variable_list forward(
      torch::autograd::AutogradContext* context,
      const TensorsFunction& function,
      at::TensorList inputs) {
    context->save_for_backward(inputs.vec());
    context->saved_data["function"] = c10::IValue::make_capsule(
        c10::make_intrusive<Holder>(function));
    return function(inputs.vec());
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& grads) {
    std::vector<at::Tensor> inputs;
    for (const auto& saved : context->get_saved_variables()) {
      inputs.push_back(saved.detach().set_requires_grad(saved.requires_grad()));
    }
    torch::AutoGradMode grad(true);
    const auto function = context->saved_data["function"].toCapsule();
    torch::autograd::backward(static_cast<const Holder&>(*function).function(inputs), grads);
    torch::autograd::variable_list result(1);  // none for the function
    for (const auto& input : inputs) {
      result.push_back(input.grad());
    }
    return result;
  }

 private:
  struct Holder : torch::CustomClassHolder {
    explicit Holder(TensorsFunction function) : function(std::move(function)) {}
    TensorsFunction function;
  };
};

// Autograd sees `inputs` and nothing else: tensors that the function holds inside containers of its
// own give it no edges.
inline std::vector<at::Tensor> reentrant_checkpoint(
    const TensorsFunction& function, const std::vector<at::Tensor>& inputs) {
  return ReentrantRerun::apply(function, at::TensorList(inputs));
}

}  // namespace retape::testing
