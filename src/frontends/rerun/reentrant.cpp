// Reentrant: a function as one node. Forward keeps nothing of its graph; backward runs it again,
// and a backward of its own through that.
#include "check/digest.h"
#include "frontends/eager.h"
#include "frontends/install.h"
#include "frontends/rerun/rerun_context.h"
#include "frontends/rerun/rerun_errors.h"
#include "frontends/rerun/side_effects.h"
#include "record/op_observer.h"
#include "tape/activity.h"
#include "tape/errors.h"

#include <retape/eager.h>
#include <retape/rerun.h>

#include <ATen/core/ivalue.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

namespace retape::detail {

namespace {

using torch::autograd::variable_list;
using Body = std::function<Tensors(const Tensors&)>;

struct Call final : torch::CustomClassHolder {
  Call(RerunOptions options, Body body)
      : options(std::move(options)),
        body(std::move(body)),
        conditions(this->options.name, this->options.preserve_rng_state) {}

  RerunOptions options;
  Body body;
  Conditions conditions;
  Outside outside{Outside::kSmall};  // of the first run
  std::vector<Digest> digests;       // of its results that have a gradient
  std::vector<size_t> which;         // of the results those are
  Tensors results;                   // until they are outputs of the node
};

// The first run has a graph, so that kernels are chosen as in a plain call; nothing is saved in it.
class Nothing final : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor&) override {}
  at::Tensor call_unpack_hook() override { refuse(); }
  std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>> retrieve_unpack_hook_data()
      const override {
    refuse();
  }

 private:
  [[noreturn]] static void refuse() {
    raise(UsageError(
        "[checkpoint] use_reentrant=True: the function runs a backward of its own through what it "
        "has "
        "just computed, of which nothing was saved. Fix: use_reentrant=False or "
        "method=\"replay\"."));
  }
};

class Forward final : public Watch {
 public:
  explicit Forward(Call& call) : call_(call) {}

  void before(const OpInfo& op, const torch::jit::Stack& stack) override {
    call_.conditions.note(op, torch::jit::last(stack, op.arguments));
    call_.outside.before(op, stack);
  }
  void after(const OpInfo& op, const torch::jit::Stack& stack) override {
    call_.outside.after(op, stack);
  }
  void between() override {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override {
    return std::make_unique<Nothing>();
  }

 private:
  Call& call_;
};

class Backward final : public Watch {
 public:
  explicit Backward(Outside& later) : later_(later) {}

  void before(const OpInfo& op, const torch::jit::Stack& stack) override {
    later_.before(op, stack);
  }
  void after(const OpInfo& op, const torch::jit::Stack& stack) override { later_.after(op, stack); }
  void between() override {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override { return nullptr; }

 private:
  Outside& later_;
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

  static variable_list backward(
      torch::autograd::AutogradContext* context, variable_list gradients) {
    if (!torch::autograd::Engine::get_default_engine().is_checkpoint_valid()) {
      raise(UsageError(
          "[checkpoint] use_reentrant=True cannot give gradients to autograd.grad() or to "
          "backward() "
          "with inputs=: it runs a backward of its own. Fix: use_reentrant=False, "
          "method=\"replay\", "
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
    // Put back once the backward in here has used what the function wrote.
    struct Later : Outside {
      ~Later() { put_back(); }
    } later;
    later.go_back_to(call.outside);
    const auto results = run(call, inputs, later);
    variable_list roots, seeds;
    for (size_t i = 0; i < call.which.size(); ++i) {
      const size_t index = call.which[i];
      compare(call, i, index < results.size() ? results[index] : at::Tensor());
      if (results[index].requires_grad() && gradients[i].defined()) {
        roots.push_back(results[index]);
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

  static Tensors run(const Call& call, const Tensors& inputs, Outside& later) {
    Replaying replaying;
    Backward watch(later);
    Conditions::Again conditions(call.conditions);
    NotEager as_before;
    c10::AutoGradMode with_graph(true);
    return call.body(inputs);
  }

  static void compare(const Call& call, size_t i, const at::Tensor& result) {
    const auto which = "output " + std::to_string(call.which[i]);
    if (!result.defined()) {
      throw_rerun_differs(call.options, which + " was not there when the function ran again");
    }
    const bool compares = call.options.check_determinism;
    const Digest now(result, /*bits=*/compares);
    if (compares && !(call.digests[i] == now)) {
      throw_rerun_differs(
          call.options,
          which + " (" + call.digests[i].shape() +
              ") came out different when the function ran again: " +
              call.digests[i].difference(now));
    }
  }
};

}  // namespace

Tensors reentrant(RerunOptions options, const Tensors& inputs, Body body) {
  if (is_eager()) {
    return body(inputs);
  }
  install();
  auto call = c10::make_intrusive<Call>(std::move(options), std::move(body));
  Tensors results;
  {
    Forward watch(*call);
    results = call->body(inputs);
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].defined() && results[i].requires_grad()) {
      call->which.push_back(i);
      call->digests.emplace_back(results[i], /*bits=*/call->options.check_determinism);
      call->results.push_back(results[i].detach());
    }
  }
  const auto which = call->which;
  if (which.empty()) {
    return results;
  }
  const auto one = at::zeros({}).set_requires_grad(true);
  const auto wired = Node::apply(std::move(call), one, at::TensorList(inputs));
  for (size_t i = 0; i < which.size(); ++i) {
    results[which[i]] = wired[i];
  }
  return results;
}

}  // namespace retape::detail
