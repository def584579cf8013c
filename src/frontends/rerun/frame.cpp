#include "frontends/rerun/frame.h"

#include "frontends/eager.h"
#include "frontends/install.h"
#include "frontends/rerun/first_run.h"
#include "frontends/rerun/rerun_errors.h"
#include "frontends/rerun/second_run.h"
#include "tape/activity.h"
#include "tape/each_tensor.h"
#include "tape/errors.h"

#include <retape/eager.h>

#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

namespace retape::detail {

Frame::Frame(RerunOptions options, const Tensors& inputs, RerunScope::Again again)
    : options_(std::move(options)),
      again_(std::move(again)),
      conditions_(options_.name, options_.preserve_rng_state) {
  inputs_.reserve(inputs.size());
  for (const auto& input : inputs) {
    inputs_.emplace_back(input, /*is_output=*/false);  // by the hooks of whatever is around
  }
}

namespace {

const std::optional<c10::SafePyObject>& current_group() {
  return c10::AutogradState::get_tls_state().get_graph_exec_group();
}

PyObject* identity(const c10::SafePyObject& group) {
  return group.ptr(&group.pyinterpreter());
}

}  // namespace

std::shared_ptr<Pass> Frame::pass_of(const c10::SafePyObject& group) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& known : groups_) {
    if (identity(known.group) == identity(group)) {
      return known.pass;
    }
  }
  groups_.push_back({group, std::make_shared<Pass>()});
  return groups_.back().pass;
}

std::shared_ptr<Pass> Frame::current_pass() {
  const int id = torch::autograd::get_current_graph_task_id();
  if (id < 0) {  // asked for outside a backward: nothing is kept for the next question
    return std::make_shared<Pass>();
  }
  if (const auto& group = current_group()) {
    return pass_of(*group);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  auto& pass = passes_[id];
  if (!pass) {
    pass = std::make_shared<Pass>();
    torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this(), id] {
      if (const auto frame = weak.lock()) {
        std::lock_guard<std::mutex> lock(frame->mutex_);
        frame->passes_.erase(id);
      }
    });
  }
  return pass;
}

void Frame::note_reader(size_t index) {
  const int id = torch::autograd::get_current_graph_task_id();
  const auto& group = current_group();
  if (id < 0 || !group) {
    return;
  }
  const auto pass = pass_of(*group);
  int reader = 0;
  {
    std::lock_guard<std::mutex> lock(pass->mutex);
    pass->readers.resize(slots_.size(), -1);
    reader = std::exchange(pass->readers[index], id);
  }
  if (reader >= 0 && reader != id) {
    throw_overlap_in_group(options_.name, slots_[index].op);
  }
}

at::Tensor Frame::bring(size_t index) {
  const auto pass = current_pass();
  std::lock_guard<std::mutex> lock(pass->mutex);
  pass->tensors.resize(slots_.size());
  pass->given.resize(slots_.size());
  pass->versions.resize(slots_.size());
  if (!pass->tensors[index].defined()) {
    run_again(*pass, index);
  }
  const auto& tensor = pass->tensors[index];
  if (tensor._version() != pass->versions[index]) {
    throw_changed_in_place(
        tensor.scalar_type(), tensor.sizes(), tensor._version(), pass->versions[index]);
  }
  pass->given[index] = true;
  return std::move(pass->tensors[index]);
}

void Frame::check_versions() const {
  for (const auto& slot : slots_) {
    if (slot.held.defined() && slot.held._version() != slot.version) {
      throw_changed_in_place(
          slot.held.scalar_type(), slot.held.sizes(), slot.held._version(), slot.version);
    }
  }
}

std::optional<c10::Device> Frame::new_device(
    const OpInfo& op, const torch::jit::Stack& stack) const {
  std::optional<c10::Device> found;
  for (const auto& result : torch::jit::last(stack, op.returns)) {
    each_tensor(result, [&](const at::Tensor& tensor, int) {
      if (tensor.defined() &&
          std::find(devices_.begin(), devices_.end(), tensor.device()) == devices_.end()) {
        found = tensor.device();
      }
    });
  }
  return found;
}

void Frame::run_again(Pass& pass, size_t wanted) {
  check_versions();
  Tensors inputs;
  inputs.reserve(inputs_.size());
  for (const auto& input : inputs_) {
    inputs.push_back(input.unpack());
  }
  SecondRun run(*this, pass, wanted);
  {
    Replaying replaying;
    replaying.in(options_.name);
    Conditions::Again conditions(conditions_);
    NotEager as_before;
    try {
      again_(inputs);
    } catch (const StopRerun&) {
    }
  }
  run.check();
}

RerunScope::RerunScope(RerunOptions options, const Tensors& inputs, Again again) {
  if (is_eager()) {
    return;
  }
  install();
  run_ = std::make_unique<FirstRun>(
      std::make_shared<Frame>(std::move(options), inputs, std::move(again)));
}

RerunScope::~RerunScope() = default;

}  // namespace retape::detail
