// Reentrant: a function as one node. Forward runs it without a graph; backward runs it again, with
// one, and a backward of its own through that.
#include "memory/phase.h"
#include "recompute/errors.h"
#include "rerun/conditions.h"
#include "rerun/outside.h"
#include "rerun/watch.h"

#include <retape/rerun.h>

#include <ATen/core/ivalue.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>

namespace retape::detail {

namespace {

using torch::autograd::variable_list;
using Body = std::function<Tensors(const Tensors&)>;

struct Call final : torch::CustomClassHolder {
  Call(RerunOptions options, Body body)
      : options(std::move(options)), body(std::move(body)), conditions(this->options.preserve_rng_state) {}

  RerunOptions options;
  Body body;
  Conditions conditions;
  Outside outside{Outside::kSmall};  // of the first run
  Tensors results;  // until they are outputs of the node
};

class Forward final : public Watch {
 public:
  explicit Forward(Call& call) : call_(call) {}

  void before(const OpInfo& op, const torch::jit::Stack& stack) override {
    const auto args = torch::jit::last(stack, op.arguments);
    call_.conditions.note(op, args);
    call_.outside.before(op, stack);
    saw_gradients_ = saw_gradients_ || std::any_of(args.begin(), args.end(), [](const auto& arg) {
      return arg.isTensor() && arg.toTensor().defined() && arg.toTensor().requires_grad();
    });
  }
  void after(const OpInfo& op, const torch::jit::Stack& stack) override {
    call_.outside.after(op, stack);
  }
  void between() override {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override { return nullptr; }

  bool saw_gradients() const { return saw_gradients_; }

 private:
  Call& call_;
  bool saw_gradients_ = false;
};

class Backward final : public Watch {
 public:
  explicit Backward(const Call& call) { later_.go_back_to(call.outside); }
  ~Backward() override { later_.put_back(); }

  void before(const OpInfo& op, const torch::jit::Stack& stack) override { later_.before(op, stack); }
  void after(const OpInfo& op, const torch::jit::Stack& stack) override { later_.after(op, stack); }
  void between() override {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override { return nullptr; }

 private:
  Outside later_;
};

struct Node final : torch::autograd::Function<Node> {
  static variable_list forward(
      torch::autograd::AutogradContext* context,
      c10::intrusive_ptr<Call> call,
      const at::Tensor& /*gradients arrive even if no input wants one*/,
      at::TensorList inputs) {
    context->save_for_backward(inputs.vec());
    auto results = std::move(call->results);
    context->saved_data["call"] = c10::IValue::make_capsule(std::move(call));
    return results;
  }

  static variable_list backward(torch::autograd::AutogradContext* context, variable_list gradients) {
    if (!torch::autograd::Engine::get_default_engine().is_checkpoint_valid()) {
      raise(UsageError(
          "[checkpoint] use_reentrant=True cannot give gradients to autograd.grad() or to backward() "
          "with inputs=: it runs a backward of its own. Fix: use_reentrant=False, method=\"replay\", "
          "or backward() without inputs."));
    }
    const auto holder = context->saved_data["call"].toCapsule();
    const auto& call = static_cast<const Call&>(*holder);
    Tensors inputs;
    for (const auto& saved : context->get_saved_variables()) {
      auto input = saved.defined() ? saved.detach() : saved;
      if (saved.defined() && saved.requires_grad()) {
        input.set_requires_grad(true);
      }
      inputs.push_back(std::move(input));
    }
    const auto results = run(call, inputs);
    variable_list roots, seeds;
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].defined() && results[i].requires_grad() && gradients[i].defined()) {
        roots.push_back(results[i]);
        seeds.push_back(gradients[i]);
      }
    }
    if (roots.empty()) {
      raise(UsageError(
          "[checkpoint] none of the outputs that got a gradient has requires_grad=True when the "
          "function runs again. Fix: call it without checkpoint, or use_reentrant=False."));
    }
    torch::autograd::backward(roots, seeds);
    variable_list found{at::Tensor(), at::Tensor()};  // of forward's first two arguments: nobody's
    for (const auto& input : inputs) {
      found.push_back(input.defined() ? input.grad() : at::Tensor());
    }
    return found;
  }

  static Tensors run(const Call& call, const Tensors& inputs) {
    PhaseGuard phase(Phase::Replay);
    Backward watch(call);
    Conditions::Again conditions(call.conditions);
    c10::AutoGradMode with_graph(true);
    return call.body(inputs);
  }
};

}  // namespace

Tensors reentrant(RerunOptions options, const Tensors& inputs, Body body) {
  auto call = c10::make_intrusive<Call>(std::move(options), std::move(body));
  bool differentiable = std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) {
    return input.defined() && input.requires_grad();
  });
  Tensors results;
  {
    Forward watch(*call);
    c10::AutoGradMode without_graph(false);
    results = call->body(inputs);
    differentiable = differentiable || watch.saw_gradients();
  }
  if (!differentiable) {
    return results;
  }
  call->results = std::move(results);
  const auto one = at::zeros({}).set_requires_grad(true);
  return Node::apply(std::move(call), one, at::TensorList(inputs));
}

}  // namespace retape::detail
