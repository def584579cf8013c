#include "backward/rows/program_recorder.h"

#include "tape/each_tensor.h"

#include <algorithm>

namespace retape::detail {

void Listener::refuse(const OpInfo& op, const std::string& why) {
  if (program_.refused.empty()) {
    program_.refused = op.name.name + " " + why;
  }
}

uint32_t Listener::number_of(const at::Tensor& tensor) {
  const auto [it, is_new] = numbers_.emplace(
      tensor.unsafeGetTensorImpl(), static_cast<uint32_t>(program_.tensors.size()));
  if (is_new) {
    program_.tensors.emplace_back(tensor).given = tensor;
  }
  return it->second;
}

bool Listener::is_as_made(const at::Tensor& tensor) const {
  const auto it = numbers_.find(tensor.unsafeGetTensorImpl());
  if (it == numbers_.end()) {
    return false;
  }
  const auto& known = program_.tensors[it->second];
  return known.given.defined() ||
      (tensor.requires_grad() == known.requires_grad && tensor.grad_fn() == known.node);
}

void Listener::take(const OpInfo& op, size_t arg, const c10::IValue& value) {
  bool taken = false;
  each_tensor(value, [&](const at::Tensor& tensor, int element) {
    if (!tensor.defined()) {
      return;
    }
    taken = true;
    if (!is_plain(tensor)) {
      refuse(op, "reads a tensor of another kind than plain");
      return;
    }
    touched_.push_back(tensor.storage().unsafeGetStorageImpl());
    const auto number = number_of(tensor);
    if (!is_as_made(tensor)) {
      refuse(
          op,
          "reads what an autograd function of the user's own has made, or what was changed in "
          "place under it");
    }
    const bool writes = std::find(op.writes.begin(), op.writes.end(), arg) != op.writes.end();
    if (writes && !born_.contains(touched_.back())) {
      refuse(op, "writes to a tensor that was not made inside");
    }
    step_.reads.push_back({static_cast<uint16_t>(arg), element, number});
  });
  const bool optional = value.isOptionalTensorList();
  if (optional || value.isTensorList()) {
    step_.lists.push_back(
        {static_cast<uint16_t>(arg), static_cast<uint32_t>(value.toListRef().size()), optional});
    taken = true;
  }
  step_.args.push_back(taken ? c10::IValue() : value);
}

void Listener::before(const OpInfo& op, const torch::jit::Stack& stack) {
  if (outer() != nullptr && !outer()->off()) {
    outer()->before(op, stack);
  }
  if (!program_.refused.empty()) {
    return;
  }
  step_ = Step();
  touched_.clear();
  step_.op = &op;
  const auto args = torch::jit::last(stack, op.arguments);
  for (size_t i = 0; i < args.size(); ++i) {
    take(op, i, args[i]);
  }
  if (op.handle.hasTag(at::Tag::inplace_view)) {
    refuse(op, "changes the shape of its argument");
  }
  auto& known = program_.flags;
  const auto flags = Flags::now(op.cheap && !known.empty() ? &known.back() : nullptr);
  if (known.empty() || !(known.back() == flags)) {
    known.push_back(flags);
  }
  step_.flags = static_cast<uint32_t>(known.size() - 1);
}

uint32_t Listener::made(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return kNoTensor;
  }
  if (!is_plain(tensor)) {
    refuse(*step_.op, "makes a tensor of another kind than plain");
    return kNoTensor;
  }
  const auto& storage = tensor.storage();
  const auto* address = storage.unsafeGetStorageImpl();
  if (std::find(touched_.begin(), touched_.end(), address) == touched_.end()) {
    born_.emplace(address, storage.getWeakStorageImpl());
  }
  const auto [it, is_new] = numbers_.emplace(
      tensor.unsafeGetTensorImpl(), static_cast<uint32_t>(program_.tensors.size()));
  if (is_new) {
    program_.tensors.emplace_back(tensor);
  }
  auto& known = program_.tensors[it->second];
  known.requires_grad = tensor.requires_grad();
  known.node = known.given.defined() ? NodePtr() : tensor.grad_fn();
  return it->second;
}

void Listener::after(const OpInfo& op, const torch::jit::Stack& stack) {
  if (outer() != nullptr && !outer()->off()) {
    outer()->after(op, stack);
  }
  if (!program_.refused.empty() || (!op.returns_tensors && op.writes.empty())) {
    return;
  }
  for (const auto& result : torch::jit::last(stack, op.returns)) {
    each_tensor(result, [&](const at::Tensor& tensor, int) { step_.made.push_back(made(tensor)); });
  }
  program_.steps.push_back(std::move(step_));
}

void Listener::between() {
  if (outer() != nullptr && !outer()->off()) {
    outer()->between();
  }
}

}  // namespace retape::detail
