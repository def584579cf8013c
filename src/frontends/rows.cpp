#include <retape/rows.h>

#include <retape/error.h>
#include <retape/recompute.h>

#include "backward/rows/program_recorder.h"
#include "backward/rows/rows_node.h"
#include "record/recorder.h"
#include "tape/errors.h"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <optional>

namespace retape {

Rows::Rows(int64_t slices, bool strict)
    : slices_(slices),
      strict_(strict),
      counts_(std::make_shared<detail::RowsCounts>()) {
  if (slices < 1) {
    throw UsageError(
        "[Rows] expected at least 1 slice, got " + std::to_string(slices) + ". Fix: Rows(8).");
  }
}

RowsStats Rows::stats() const {
  std::lock_guard<std::mutex> lock(counts_->mutex);
  RowsStats stats;
  stats.sliced = counts_->sliced;
  stats.whole = counts_->whole;
  stats.ops_replayed = counts_->ops_replayed;
  stats.reason = counts_->reason;
  return stats;
}

namespace detail {

namespace {

using Numbers = std::vector<uint32_t>;

bool shares_memory(const at::Tensor& a, const at::Tensor& b) {
  return is_plain(a) && is_plain(b) && a.storage().is_alias_of(b.storage());
}

bool has_hooks(torch::autograd::Node& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() ||
      !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty();
}

// Autocast keeps its casts of leaves, for whoever casts them next.
bool is_kept_by_autocast(const Step& step, const Program& program) {
  if (step.op->name.name != "aten::_to_copy" || !at::autocast::is_autocast_cache_enabled()) {
    return false;
  }
  const auto& source = program.tensors[step.reads[0].tensor].given;
  return source.defined() && source.is_leaf() && source.requires_grad() &&
      at::autocast::is_autocast_enabled(source.device().type());
}

}  // namespace

class RowsCall {
 public:
  RowsCall(const Rows& rows, Policy policy, std::string name, const Tensors& inputs)
      : rows_(rows),
        scope_(std::move(policy), std::move(name)),
        region_(Recorder::current()->scope().region),
        tape_(c10::intrusive_ptr<Tape>::reclaim_copy(&Recorder::current()->tape())) {
    Recorder::current()->scope().packs_all =
        true;  // which tensors outlive the call is told by who holds them
    listener_.emplace();
    choose_carriers(inputs);
  }

  Tensors finish(const Tensors& outputs, std::string& warning);

 private:
  void choose_carriers(const Tensors& inputs);
  std::optional<Plan> plan(const Tensors& outputs);
  bool can_be_one_node(const Tensors& outputs);
  bool is_left_alone(const Plan& plan, const Tensors& outputs);
  Tensors sliced(Plan plan, const Tensors& outputs);
  std::string replay_whole();

  const Rows rows_;
  Recompute scope_;
  std::shared_ptr<Region> region_;
  c10::intrusive_ptr<Tape> tape_;
  std::optional<Listener> listener_;
  Numbers carriers_;  // the first one decides; the others have the same leading sizes
  int64_t rows_there_ = 0;
  std::string why_;
};

void RowsCall::choose_carriers(const Tensors& inputs) {
  c10::IntArrayRef leading_sizes;
  for (const auto& input : inputs) {
    if (!input.defined() || !is_plain(input)) {
      continue;
    }
    const auto sizes = input.sizes();
    if (carriers_.empty()) {
      if (!input.is_floating_point() || input.dim() < 2) {
        continue;
      }
      leading_sizes = sizes.slice(0, sizes.size() - 1);
      rows_there_ = c10::multiply_integers(leading_sizes);
    } else if (
        sizes.size() < leading_sizes.size() ||
        sizes.slice(0, leading_sizes.size()) != leading_sizes) {
      continue;
    }
    carriers_.push_back(listener_->number_of(input));
  }
}

// Outputs with a gradient can become those of one node: the ops made them, each has memory of its
// own.
bool RowsCall::can_be_one_node(const Tensors& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& output = outputs[i];
    if (!is_plain(output) || !listener_->is_as_made(output)) {
      why_ = "an output was made by something else than ops on plain tensors";
      return false;
    }
    for (const auto& known : listener_->program().tensors) {
      if (known.given.defined() && shares_memory(known.given, output)) {
        why_ = "an output shares memory with a tensor that was given";
        return false;
      }
    }
    for (size_t j = 0; j < i; ++j) {
      if (shares_memory(outputs[j], output)) {
        why_ = "two outputs share memory";
        return false;
      }
    }
  }
  return true;
}

// Nobody has hooks on what was made inside, nor could have later: then it would be missed.
bool RowsCall::is_left_alone(const Plan& plan, const Tensors& outputs) {
  const auto& tensors = listener_->program().tensors;
  for (const auto& row : plan.row_steps) {
    for (const auto number : row.step.made) {
      if (number == kNoTensor) {
        continue;
      }
      const auto& known = tensors[number];
      if (known.node && has_hooks(*known.node)) {
        why_ = "there are hooks on the result of " + row.step.op->name.name;
        return false;
      }
      const auto* impl = known.impl._unsafe_get_target();
      const bool is_output = std::any_of(
          outputs.begin(), outputs.end(), [&](const at::Tensor& output) {
            return output.unsafeGetTensorImpl() == impl ||
                (output.is_view() && output._base().unsafeGetTensorImpl() == impl);
          });
      if (!is_output && known.requires_grad && !known.impl.expired() &&
          !is_kept_by_autocast(row.step, listener_->program())) {
        why_ = "the result of " + row.step.op->name.name + " outlives the call";
        return false;
      }
    }
  }
  return true;
}

std::optional<Plan> RowsCall::plan(const Tensors& outputs) {
  auto& program = listener_->program();
  why_ = program.refused;
  if (why_.empty() && carriers_.empty()) {
    why_ = "no argument is a floating-point tensor with rows";
  }
  if (!why_.empty() || !can_be_one_node(outputs)) {
    return std::nullopt;
  }
  Numbers numbers;
  for (const auto& output : outputs) {
    numbers.push_back(listener_->number_of(output));
  }
  auto found = make_plan(program, carriers_, rows_there_, numbers, why_);
  if (!found && carriers_.size() > 1) {  // the others may be weights that happen to look alike
    std::string ignored;
    found = make_plan(program, {carriers_[0]}, rows_there_, numbers, ignored);
  }
  return found && is_left_alone(*found, outputs) ? std::move(found) : std::nullopt;
}

Tensors RowsCall::sliced(Plan plan, const Tensors& outputs) {
  Tensors given, results;
  for (const auto number : plan.given) {
    given.push_back(listener_->program().tensors[number].given);
  }
  listener_.reset();
  scope_.close();
  for (const auto& output : outputs) {
    results.push_back(output.detach());
  }
  {
    std::lock_guard<std::mutex> lock(rows_.counts_->mutex);
    ++rows_.counts_->sliced;
  }
  set_sliced_history(
      {std::move(plan), rows_.slices_, rows_.counts_, region_, tape_}, given, results);
  return results;
}

// What to tell the user.
std::string RowsCall::replay_whole() {
  listener_.reset();
  scope_.close();
  const std::string text = "[checkpoint] " + where(region_.get()) +
      "rows cannot be told apart: " + why_ +
      ". Fix: leave out rows, or draw the region around ops that treat rows apart.";
  if (rows_.strict_) {
    throw UsageError(text);
  }
  bool is_first = false;
  {
    std::lock_guard<std::mutex> lock(rows_.counts_->mutex);
    is_first = rows_.counts_->whole++ == 0;
    rows_.counts_->reason = why_;
  }
  return is_first ? text + " It is replayed whole." : "";
}

Tensors RowsCall::finish(const Tensors& outputs, std::string& warning) {
  Tensors with_gradient;
  std::vector<size_t> places;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].defined() && outputs[i].requires_grad()) {
      with_gradient.push_back(outputs[i]);
      places.push_back(i);
    }
  }
  // With one row, or none that counts, whole is all there is: nothing to tell.
  if (with_gradient.empty() || (rows_there_ < 2 && !carriers_.empty())) {
    listener_.reset();
    scope_.close();
    return outputs;
  }
  auto found = plan(with_gradient);
  if (!found) {
    warning = replay_whole();
    return outputs;
  }
  auto results = outputs;
  const auto wired = sliced(std::move(*found), with_gradient);
  for (size_t i = 0; i < places.size(); ++i) {
    results[places[i]] = wired[i];
  }
  return results;
}

RowsScope::RowsScope(const Rows& rows, Policy policy, std::string name, const Tensors& inputs)
    : call_(std::make_unique<RowsCall>(rows, std::move(policy), std::move(name), inputs)) {}

RowsScope::~RowsScope() = default;

Tensors RowsScope::finish(const Tensors& outputs) {
  const auto call = std::move(call_);
  return call->finish(outputs, warning_);
}

void RowsScope::close() {
  call_.reset();
}

}  // namespace detail

}  // namespace retape
