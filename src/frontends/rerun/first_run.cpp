#include "frontends/rerun/first_run.h"

#include "tape/errors.h"
#include "tape/view.h"

#include <retape/error.h>

#include <torch/csrc/autograd/saved_variable_hooks.h>

namespace retape::detail {

namespace {

// What autograd holds in place of a tensor that the function saved.
class RerunToken final : public torch::autograd::SavedVariableHooks {
 public:
  RerunToken(FirstRun& run, std::shared_ptr<Frame> frame) : run_(&run), frame_(std::move(frame)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    counter_ = tensor.unsafeGetTensorImpl()->version_counter();
    version_ = counter_.current_version();
    sizes_ = sizes_of(tensor).vec();
    dtype_ = tensor.scalar_type();
    index_ = run_->save(tensor);
    run_ = nullptr;
    held_ = frame_->held(index_);
  }

  at::Tensor call_unpack_hook() override {
    if (counter_.enabled() && counter_.current_version() != version_) {
      throw_changed_in_place(dtype_, sizes_, counter_.current_version(), version_);
    }
    frame_->note_reader(index_);
    return held_.defined() ? held_ : frame_->bring(index_);
  }

  std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>> retrieve_unpack_hook_data()
      const override {
    throw UsageError(
        "[checkpoint] compiled autograd traces backward and cannot trace a second run. Fix: run "
        "this "
        "backward without torch._dynamo.compiled_autograd.");
  }

 private:
  FirstRun* run_;  // until it has packed
  std::shared_ptr<Frame> frame_;
  at::Tensor held_;
  size_t index_ = 0;
  c10::VariableVersion counter_;
  uint32_t version_ = 0;
  std::vector<int64_t> sizes_;
  c10::ScalarType dtype_ = c10::ScalarType::Undefined;
};

}  // namespace

FirstRun::FirstRun(std::shared_ptr<Frame> frame) : frame_(std::move(frame)) {}

FirstRun::~FirstRun() {
  frame_->complete_ = true;
}

void FirstRun::before(const OpInfo& op, const torch::jit::Stack& stack) {
  op_ = &op;
  const auto args = torch::jit::last(stack, op.arguments);
  frame_->conditions_.note(op, args);
  frame_->outside_.before(op, stack);
  const int unwritten = left_unwritten(op, args);
  unwritten_ = unwritten >= 0 && args[unwritten].isTensor()
      ? args[unwritten].toTensor().unsafeGetTensorImpl()
      : nullptr;
  if (frame_->options_.debug) {
    frame_->ops_.push_back(&op);
  }
}

void FirstRun::after(const OpInfo& op, const torch::jit::Stack& stack) {
  op_ = nullptr;
  if (frame_->conditions_.checker() != nullptr) {
    while (const auto device = frame_->new_device(op, stack)) {
      frame_->devices_.push_back(*device);
    }
  }
  frame_->outside_.after(op, stack);
  for (const auto& [index, tensor] : waiting_) {
    take_digest(index, tensor);
  }
  waiting_.clear();
}

std::unique_ptr<torch::autograd::SavedVariableHooks> FirstRun::hooks() {
  return std::make_unique<RerunToken>(*this, frame_);
}

// A parameter, or a tensor without gradient that the function did not make: dropping it would free
// nothing, and held it is what it is by then, as plain autograd has it.
bool FirstRun::alive_anyway(const at::Tensor& tensor) const {
  return tensor.is_leaf() && (tensor.requires_grad() || !frame_->outside_.made_inside(tensor));
}

size_t FirstRun::save(const at::Tensor& tensor) {
  const size_t index = frame_->slots_.size();
  Slot slot;
  slot.op = op_;
  if (alive_anyway(tensor)) {
    slot.held = tensor;
    slot.version = tensor._version();
  }
  slot.garbage = op_ != nullptr && tensor.unsafeGetTensorImpl() == unwritten_;
  frame_->slots_.push_back(std::move(slot));
  if (op_ != nullptr) {
    waiting_.emplace_back(index, tensor);
  } else {
    take_digest(index, tensor);
  }
  return index;
}

void FirstRun::take_digest(size_t index, const at::Tensor& tensor) {
  auto& slot = frame_->slots_[index];
  if (!slot.held.defined() && frame_->options_.check_determinism) {
    slot.digest = Digest(tensor, /*bits=*/!slot.garbage);
  }
}

}  // namespace retape::detail
