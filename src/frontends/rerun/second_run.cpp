#include "frontends/rerun/second_run.h"

#include "check/replay_checker.h"
#include "frontends/rerun/rerun_errors.h"
#include "tape/errors.h"
#include "tape/fault.h"
#include "torch/interceptor.h"

#include <retape/error.h>

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <sstream>

namespace retape::detail {

namespace {

// Autograd's hold on a tensor of the second run, whose graph nobody will go through, unless the
// function itself does.
class Taken final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Taken(SecondRun& run) : run_(run) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = tensor.is_leaf() ? tensor : tensor.tensor_data();
    run_.save(tensor);
  }

  at::Tensor call_unpack_hook() override { return tensor_; }

  std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>> retrieve_unpack_hook_data()
      const override {
    throw UsageError(
        "[checkpoint] compiled autograd cannot run inside a second run. Fix: run that backward "
        "without torch._dynamo.compiled_autograd.");
  }

 private:
  SecondRun& run_;
  at::Tensor tensor_;
};

std::string name_of(const OpInfo* op) {
  return op == nullptr ? "a custom function" : op->name.name;
}

}  // namespace

SecondRun::SecondRun(Frame& frame, Pass& pass, size_t wanted)
    : frame_(frame),
      pass_(pass),
      wanted_(wanted),
      expected_(frame.slots_.size()) {
  later_.go_back_to(frame_.outside_);
}

SecondRun::~SecondRun() {
  later_.put_back();
}

void SecondRun::before(const OpInfo& op, const torch::jit::Stack& stack) {
  op_ = &op;
  if (over_) {
    if (injected(Fault::StopsLate)) {
      hit();
    }
    found("late stop", &op, "it runs after everything that was wanted is there");
  }
  later_.before(op, stack);
  if (frame_.options_.debug) {
    ops_.push_back(&op);
  }
}

void SecondRun::after(const OpInfo& op, const torch::jit::Stack& stack) {
  op_ = nullptr;
  look_at_devices(op, stack);
  later_.after(op, stack);
  for (const auto& [index, tensor] : waiting_) {
    take(index, tensor, &op);
  }
  waiting_.clear();
  between();
}

// What follows from a tensor in the wrong place is in the wrong place too, and is not told again.
void SecondRun::look_at_devices(const OpInfo& op, const torch::jit::Stack& stack) {
  if (elsewhere_ || frame_.conditions_.checker() == nullptr) {
    return;
  }
  if (const auto device = frame_.new_device(op, stack)) {
    elsewhere_ = true;
    found(
        "default device",
        &op,
        "it makes a tensor on " + device->str() + ", where the first run made none");
  }
}

void SecondRun::between() {
  const bool all = frame_.options_.early_stop && saved_ >= expected_;
  if (!all && !mismatch_) {
    return;
  }
  over_ = true;
  if (injected(Fault::StopsLate) && !mismatch_) {
    return;
  }
  if (frame_.options_.stop != nullptr) {
    frame_.options_.stop();
  }
  throw StopRerun();
}

std::unique_ptr<torch::autograd::SavedVariableHooks> SecondRun::hooks() {
  return std::make_unique<Taken>(*this);
}

void SecondRun::save(const at::Tensor& tensor) {
  const size_t index = saved_++;
  if (injected(Fault::StopsEarly) && op_ != nullptr && saved_ == frame_.slots_.size()) {
    hit();
    take(index, tensor, op_);
    between();
  }
  if (op_ != nullptr) {
    waiting_.emplace_back(index, tensor);
  } else {
    take(index, tensor, nullptr);
  }
}

void SecondRun::take(size_t index, const at::Tensor& tensor, const OpInfo* by) {
  NotIntercepted unseen;  // what is done here is not the function's
  if (mismatch_) {
    return;
  }
  if (op_ != nullptr) {
    found("early stop", op_, "a tensor is taken from it before it has ended");
  }
  if (index >= frame_.slots_.size()) {
    if (frame_.complete_ && frame_.options_.check_determinism) {
      std::ostringstream text;
      text << "the function saved more tensors for backward when it ran again: expected "
           << frame_.slots_.size() << ", got " << index + 1;
      mismatch("values", by, text.str());
    }
    return;
  }
  const auto& slot = frame_.slots_[index];
  if (slot.held.defined()) {
    return;
  }
  if (frame_.options_.check_determinism) {
    const Digest now(tensor, /*bits=*/true);
    if (!(slot.digest == now)) {
      std::ostringstream text;
      text << "tensor " << index << " that " << name_of(slot.op) << " saved for backward ("
           << slot.digest.shape()
           << ") came out different when the function ran again: " << slot.digest.difference(now);
      mismatch(
          slot.digest.device() == now.device() ? "values" : "default device", slot.op, text.str());
      return;
    }
  }
  if (index == wanted_ || !pass_.given[index]) {
    const auto data = tensor.tensor_data();
    pass_.tensors[index] = later_.holds(tensor) ? data.clone() : data;
    pass_.versions[index] = pass_.tensors[index]._version();
  }
}

void SecondRun::mismatch(const char* kind, const OpInfo* op, const std::string& what) {
  mismatch_ = what;
  found(kind, op, what);
}

void SecondRun::found(const char* kind, const OpInfo* op, const std::string& what) {
  if (auto* checker = frame_.conditions_.checker()) {
    const auto name = op == nullptr ? "" : c10::toString(op->name);
    checker->found({kind, name, frame_.options_.name, source_of_this_op(), what});
  }
}

std::string SecondRun::ops() const {
  if (!frame_.options_.debug) {
    return "";
  }
  std::ostringstream text;
  const auto list = [&](const char* title, const std::vector<const OpInfo*>& ops) {
    text << title;
    for (const auto* op : ops) {
      text << "\n  " << op->name.name;
    }
  };
  list("\nops of the first run:", frame_.ops_);
  list("\nops of the second run:", ops_);
  return text.str();
}

void SecondRun::check() const {
  if (mismatch_) {
    throw_rerun_differs(frame_.options_, *mismatch_, ops());
  }
  if (saved_ < frame_.slots_.size() && (frame_.options_.check_determinism || saved_ <= wanted_)) {
    std::ostringstream text;
    text << "the function saved fewer tensors for backward when it ran again: expected "
         << frame_.slots_.size() << ", got " << saved_;
    throw_rerun_differs(frame_.options_, text.str(), ops());
  }
}

}  // namespace retape::detail
