#include <retape/eager.h>
#include <retape/error.h>
#include <retape/output_discard.h>

#include "frontends/output_discard/discardable_output.h"
#include "record/pipeline.h"
#include "record/recorder.h"
#include "tape/errors.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/node.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <sstream>
#include <unordered_set>

namespace retape {

namespace detail {

namespace {

using torch::autograd::Node;

constexpr const char* kDiscard =
    "[OutputDiscardCheckpoint::discard_output_and_register_recompute] ";

struct Call {
  std::vector<std::shared_ptr<Output>> outputs;
  std::vector<size_t> strangers;          // on each output's storage when the function ended
  std::unordered_set<const Node*> nodes;  // of the outputs; to compare with, they may be gone
  uint64_t first_node = 0;                // number of the oldest of them
};

class Hook : public torch::autograd::FunctionPreHook {
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const final {
    throw UsageError(
        "[OutputDiscardCheckpoint] compiled autograd traces backward and cannot trace replay. Fix: "
        "run "
        "this backward without torch._dynamo.compiled_autograd.");
  }
};

// On the hook tensor: its gradient is here, so what it was made from will be read soon.
class Refill final : public Hook {
 public:
  explicit Refill(std::vector<std::weak_ptr<Output>> outputs) : outputs_(std::move(outputs)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    for (const auto& weak : outputs_) {
      if (const auto output = weak.lock()) {
        output->refill();
      }
    }
    return grads;
  }

 private:
  std::vector<std::weak_ptr<Output>> outputs_;
};

// Owns a call that nobody has discarded, as long as the graph of its outputs lives.
class Keeper final : public Hook {
 public:
  explicit Keeper(std::shared_ptr<Call> call) : call_(std::move(call)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    if (!torch::autograd::get_current_graph_task_keep_graph()) {
      call_.reset();
    }
    return grads;
  }

 private:
  std::shared_ptr<Call> call_;
};

std::string named(size_t index, const at::Tensor& tensor) {
  std::ostringstream text;
  text << "output " << index << " (" << c10::toString(tensor.scalar_type()) << " " << tensor.sizes()
       << ")";
  return text.str();
}

// Tensors that share their storage with `tensor` because it is a view of them.
void add_bases(const at::Tensor& tensor, std::unordered_set<const c10::TensorImpl*>& known) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(tensor);
  if (meta == nullptr) {
    return;
  }
  if (meta->has_bw_view()) {
    known.insert(meta->get_backward_view().base_.unsafeGetTensorImpl());
  }
  if (meta->has_fw_view()) {
    known.insert(meta->get_forward_view().base_.unsafeGetTensorImpl());
  }
}

// Does the graph of `from` lead to an output of `call`? Nodes are numbered in the order in which
// they are made, so only what came after the call is walked.
bool reaches(const Node* from, const Call& call) {
  if (from == nullptr || call.nodes.empty()) {
    return false;
  }
  std::unordered_set<const Node*> seen{from};
  std::vector<const Node*> open{from};
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (call.nodes.contains(node)) {
      return true;
    }
    for (const auto& edge : node->next_edges()) {
      const Node* next = edge.function.get();
      if (next != nullptr && next->sequence_nr() >= call.first_node && seen.insert(next).second) {
        open.push_back(next);
      }
    }
  }
  return false;
}

}  // namespace
}  // namespace detail

struct OutputDiscardCheckpoint::Impl {
  std::string name;
  bool called = false;
  std::vector<std::weak_ptr<detail::Call>> pending;      // in the order of the calls
  std::vector<std::shared_ptr<detail::Call>> owned;      // of those, what no graph owns
  std::vector<std::weak_ptr<detail::Output>> discarded;  // by the last discard

  std::string region() const { return name.empty() ? "" : "region \"" + name + "\": "; }

  void prune();
  std::vector<std::shared_ptr<detail::Call>> made_into(const at::Tensor& hook_tensor) const;
  void check(const detail::Call& call) const;
  void forget(const std::shared_ptr<detail::Call>& call);
};

namespace detail {

struct OutputDiscardCall::Impl {
  OutputDiscardCheckpoint::Impl& owner;
  std::unique_ptr<Recompute> scope;  // null: a plain call
  uint64_t first_op = 0;
  std::vector<WeakStorage> given;
  std::vector<at::Tensor> made;

  explicit Impl(OutputDiscardCheckpoint::Impl& owner) : owner(owner) {}
  size_t strangers(const at::Tensor& tensor) const;
};

OutputDiscardCall::OutputDiscardCall(OutputDiscardCheckpoint& owner)
    : impl_(std::make_unique<Impl>(*owner.impl_)) {
  owner.impl_->called = true;
  if (c10::GradMode::is_enabled() && !is_eager()) {
    impl_->scope = std::make_unique<Recompute>(Policy::full().anchors(false), owner.impl_->name);
    impl_->first_op = Recorder::current()->ops();
  }
}

OutputDiscardCall::~OutputDiscardCall() = default;

void OutputDiscardCall::given(const at::Tensor& argument) {
  if (argument.defined() && argument.has_storage()) {
    impl_->given.push_back(argument.storage().getWeakStorageImpl());
  }
}

void OutputDiscardCall::made(const at::Tensor& result) {
  if (impl_->scope) {
    impl_->made.push_back(result);
  }
}

// Besides the results, and the tensors that they are views of, there may be others on the same
// storage by now: the function has left them somewhere.
size_t OutputDiscardCall::Impl::strangers(const at::Tensor& tensor) const {
  std::unordered_set<const c10::TensorImpl*> known;
  for (const auto& other : made) {
    if (other.defined() && other.has_storage() && other.is_alias_of(tensor)) {
      known.insert(other.unsafeGetTensorImpl());
      add_bases(other, known);
    }
  }
  const size_t all = tensor.storage().use_count();
  return all > known.size() ? all - known.size() : 0;
}

std::vector<size_t> OutputDiscardCall::finish() {
  std::vector<size_t> unmade;
  if (!impl_->scope) {
    return unmade;
  }
  auto& recorder = *Recorder::current();
  auto call = std::make_shared<Call>();
  std::unordered_set<const c10::StorageImpl*> seen;
  std::unordered_set<Node*> nodes;  // alive: the results are
  for (size_t i = 0; i < impl_->made.size(); ++i) {
    const auto& tensor = impl_->made[i];
    if (!tensor.defined() || !is_plain(tensor)) {
      continue;
    }
    const auto* storage = tensor.storage().unsafeGetStorageImpl();
    const bool is_given = std::any_of(
        impl_->given.begin(), impl_->given.end(), [&](const WeakStorage& s) {
          return s._unsafe_get_target() == storage;
        });
    if (is_given) {
      continue;
    }
    auto value = recorder.made_since(impl_->first_op, tensor);
    if (!value) {
      unmade.push_back(i);
      continue;
    }
    if (tensor.grad_fn()) {
      nodes.insert(tensor.grad_fn().get());
    }
    if (seen.insert(storage).second) {
      call->strangers.push_back(impl_->strangers(tensor));
      call->outputs.push_back(
          Output::watch(
              c10::intrusive_ptr<Tape>::reclaim_copy(&recorder.tape()),
              std::move(value),
              impl_->first_op,
              named(i, tensor)));
    }
  }
  if (!call->outputs.empty()) {
    call->first_node = UINT64_MAX;
    for (auto* node : nodes) {
      call->nodes.insert(node);
      call->first_node = std::min(call->first_node, node->sequence_nr());
      node->add_pre_hook(std::make_unique<Keeper>(call));
    }
    impl_->owner.prune();
    impl_->owner.pending.push_back(call);
    if (nodes.empty()) {
      impl_->owner.owned.push_back(call);
    }
  }
  impl_->made.clear();
  impl_->scope->close();
  return unmade;
}

}  // namespace detail

void OutputDiscardCheckpoint::Impl::prune() {
  owned.erase(
      std::remove_if(
          owned.begin(),
          owned.end(),
          [](const auto& call) {
            return std::all_of(call->outputs.begin(), call->outputs.end(), [](const auto& output) {
              return !output->storage();
            });
          }),
      owned.end());
  pending.erase(
      std::remove_if(
          pending.begin(), pending.end(), [](const auto& call) { return call.expired(); }),
      pending.end());
}

std::vector<std::shared_ptr<detail::Call>> OutputDiscardCheckpoint::Impl::made_into(
    const at::Tensor& hook_tensor) const {
  std::vector<std::shared_ptr<detail::Call>> calls;
  for (const auto& weak : pending) {
    if (auto call = weak.lock(); call && detail::reaches(hook_tensor.grad_fn().get(), *call)) {
      calls.push_back(std::move(call));
    }
  }
  if (calls.empty() && !pending.empty()) {
    if (auto oldest = pending.front().lock()) {
      calls.push_back(std::move(oldest));
    }
  }
  return calls;
}

void OutputDiscardCheckpoint::Impl::check(const detail::Call& call) const {
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const auto storage = call.outputs[i]->storage();
    const auto who = detail::kDiscard + region() + call.outputs[i]->what();
    if (storage && call.strangers[i] > 0) {
      throw UsageError(
          who + " does not have its storage to itself: " + std::to_string(call.strangers[i]) +
          " more tensor" + (call.strangers[i] == 1 ? "" : "s") +
          " on it outlived the function (a cache, a list, an "
          "attribute that it was stored in): expected the outputs alone. Nothing was freed. Fix: "
          "let "
          "the function store a clone() there.");
    }
    if (storage && !storage->resizable()) {
      throw UsageError(
          who +
          " has its memory in use outside torch (numpy(), shared memory): expected memory "
          "that only tensors read. Nothing was freed. Fix: take numpy() of a clone().");
    }
  }
}

void OutputDiscardCheckpoint::Impl::forget(const std::shared_ptr<detail::Call>& call) {
  call->outputs.clear();
  owned.erase(std::remove(owned.begin(), owned.end(), call), owned.end());
  pending.erase(
      std::remove_if(
          pending.begin(), pending.end(), [&](const auto& weak) { return weak.lock() == call; }),
      pending.end());
}

OutputDiscardCheckpoint::OutputDiscardCheckpoint(std::string name)
    : impl_(std::make_unique<Impl>()) {
  impl_->name = std::move(name);
}

OutputDiscardCheckpoint::~OutputDiscardCheckpoint() = default;
OutputDiscardCheckpoint::OutputDiscardCheckpoint(OutputDiscardCheckpoint&&) noexcept = default;
OutputDiscardCheckpoint& OutputDiscardCheckpoint::operator=(OutputDiscardCheckpoint&&) noexcept =
    default;

void OutputDiscardCheckpoint::clear() {
  for (const auto& weak : std::exchange(impl_->pending, {})) {
    if (const auto call = weak.lock()) {
      call->outputs.clear();  // a graph may own the call, and goes on doing so
    }
  }
  impl_->owned.clear();
}

size_t OutputDiscardCheckpoint::discard_output_and_register_recompute(
    const at::Tensor& hook_tensor) {
  if (!impl_->called) {
    throw UsageError(
        detail::kDiscard + impl_->region() +
        "nothing to discard: expected a checkpoint() call of this object before it, got none. Fix: "
        "y = "
        "ckpt.checkpoint(function, x); z = consumer(y); then discard with z.");
  }
  if (!hook_tensor.defined()) {
    throw UsageError(
        detail::kDiscard + impl_->region() +
        "expected the tensor that the consumer made, got an undefined one. Fix: pass its result.");
  }
  if (is_eager()) {
    return 0;
  }
  impl_->prune();
  const auto calls = impl_->made_into(hook_tensor);
  for (const auto& call : calls) {
    impl_->check(*call);
  }
  size_t bytes = 0;
  if (!calls.empty()) {
    impl_->discarded.clear();
    detail::see_ops_of_refillables();
  }
  for (const auto& call : calls) {
    for (const auto& output : call->outputs) {
      if (const size_t freed = output->discard(); freed > 0) {
        bytes += freed;
        impl_->discarded.push_back(output);
      }
    }
    impl_->forget(call);
  }
  if (const auto& node = hook_tensor.grad_fn(); node && !impl_->discarded.empty()) {
    node->add_tensor_pre_hook(std::make_unique<detail::Refill>(impl_->discarded));
  }
  return bytes;
}

}  // namespace retape
