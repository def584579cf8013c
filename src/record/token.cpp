#include "record/token.h"

#include "record/recorder.h"
#include "replay/fetch.h"
#include "residency/refillable.h"
#include "tape/errors.h"

#include <retape/binding.h>
#include <retape/error.h>

#include <torch/csrc/autograd/graph_task.h>

#include <atomic>

namespace retape::detail {

namespace {

std::atomic<UnpackListener> unpack_listener{nullptr};

}  // namespace

void set_unpack_listener(UnpackListener listener) {
  unpack_listener.store(listener);
}

Token::Token(Recorder& recorder)
    : tape_(c10::intrusive_ptr<Tape>::reclaim_copy(&recorder.tape())) {}

Token::~Token() {
  if (waiting_) {
    if (auto* recorder = Recorder::current()) {
      recorder->forget(*this);
    }
  }
  if (value_) {
    let_go();
  }
}

void Token::let_go() {
  TapeLock lock(*tape_);
  if (--value_->tokens == 0) {
    value_->released = true;
    tape_->released.store(true, std::memory_order_relaxed);
  }
  if (consumed_ != Value::kNoPass && value_->pass == consumed_) {
    --value_->done;
  }
  settle(*value_, torch::autograd::get_current_graph_task_id());
  value_.reset();
}

void Token::call_pack_hook(const at::Tensor& tensor) {
  counter_ = tensor.unsafeGetTensorImpl()->version_counter();
  version_ = counter_.current_version();
  leaf_ = tensor.is_leaf() || (tensor.is_view() && tensor._base().is_leaf());
  if (!is_plain(tensor)) {
    original_ = tensor.is_leaf() ? tensor
                                 : tensor.detach();  // with its history it would hold itself
    return;
  }
  if (tensor.is_leaf() && tensor.requires_grad()) {
    // As autograd does: whatever the leaf holds by then (`param.data = ...`) is what it gets.
    original_ = tensor;
    Recorder::current()->count_given(tensor.storage(), /*leaf=*/true);
    return;
  }
  view_ = View(tensor);
  Recorder::current()->save(*this, tensor);
}

void Token::check_version() const {
  if (counter_.enabled() && counter_.current_version() != version_) {
    const bool whole = original_.defined() && !original_.is_nested();  // which has no sizes to tell
    throw_changed_in_place(
        whole ? original_.scalar_type() : view_.dtype(),
        whole ? original_.sizes() : view_.sizes(),
        counter_.current_version(),
        version_);
  }
}

// As autograd does, with the counter of the tensor that was saved: a write to what was handed out
// is a write to it, and what is saved from it again (double backward) notices a later change too.
at::Tensor Token::tensor_on(c10::Storage storage) const {
  auto tensor = view_.on(std::move(storage));
  tensor.unsafeGetTensorImpl()->set_version_counter(counter_);
  return tensor;
}

at::Tensor Token::call_unpack_hook() {
  if (const auto listener = unpack_listener.load(std::memory_order_relaxed)) {
    listener();
  }
  check_version();
  if (original_.defined()) {
    return original_;
  }
  if (!value_) {
    fill(storage_);
    return tensor_on(storage_);
  }
  const int pass = torch::autograd::get_current_graph_task_id();
  Brought brought{};
  {
    TapeLock lock(*tape_);
    brought = {value_->alias, true};
    if (value_->written_in_backward()) {
      throw_changed_in_place(
          view_.dtype(),
          view_.sizes(),
          value_->lent_to_backward.counter.current_version(),
          value_->lent_to_backward.version);
    }
  }
  if (!brought.storage) {
    brought = bring_back(*tape_, *value_, pass);
  }
  auto tensor = tensor_on(brought.storage);
  if (!brought.shared) {
    TapeLock lock(*tape_);
    if (value_->hold == Hold::Replayed && !value_->lent_to_backward.counter.enabled()) {
      value_->lent_to_backward = {counter_, version_};
    }
  }
  if (pass >= 0 && torch::autograd::get_current_graph_task_keep_graph()) {
    // The token outlives this pass; its value need not.
    TapeLock lock(*tape_);
    if (consumed_ != pass) {
      consumed_ = pass;
      consume(*value_, pass);
    }
  }
  if (!brought.shared && !tape_->observers.empty()) {
    TapeLock lock(*tape_);
    for (const auto& observer : tape_->observers) {
      tensor = observer->unpacked(*tape_, *value_, view_, std::move(tensor), unpacked_);
    }
    unpacked_ = true;
  }
  if (pass < 0) {
    // Looked at from outside of backward (grad_fn._saved_self). It stays, as autograd's own would:
    // what is written to it now is what backward gets, in whichever slot it was saved.
    {
      TapeLock lock(*tape_);
      value_->alias = brought.storage;
    }
    let_go();
    storage_ = brought.storage;
  }
  return tensor;
}

std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>> Token::retrieve_unpack_hook_data()
    const {
  throw UsageError(
      "[recompute] compiled autograd traces backward and cannot trace replay. Fix: run this "
      "backward "
      "without torch._dynamo.compiled_autograd, or forward without a scope.");
}

}  // namespace retape::detail

bool retape::are_hooks_of_a_scope(const torch::autograd::SavedVariableHooks& hooks) {
  return dynamic_cast<const detail::Token*>(&hooks) != nullptr;
}
