#include "backward/rows/sliced_backward.h"

#include "backward/gradient_memory.h"
#include "backward/rows/accumulator.h"
#include "backward/rows/product.h"
#include "backward/rows/slice.h"
#include "tape/activity.h"
#include "tape/each_tensor.h"
#include "torch/interceptor.h"

#include <ATen/Functions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <optional>

namespace retape::detail {

namespace {

using at::Tensor;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

// Roots and what came in for them, to what was asked for.
variable_list gradients(const edge_list& roots, const variable_list& seeds, const edge_list& to) {
  return torch::autograd::Engine::get_default_engine().execute(
      roots, seeds, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/false, to);
}

torch::autograd::Edge edge_of(const Tensor& tensor) {
  return torch::autograd::impl::gradient_edge(tensor);
}

Tensor leaf_of(const Tensor& tensor, bool wants_gradient) {
  if (!wants_gradient) {
    return tensor;  // as it is: a number in a tensor's clothes stays one
  }
  return tensor.detach().set_requires_grad(true);
}

// The gradient of a given tensor that carries rows: each slice writes its own.
struct RowGradient {
  size_t given;
  int lead;
  Tensor tensor;        // undefined until there is something to write
  bool reuses = false;  // the memory of a gradient that came in
  bool written = false;
};

class Backward {
 public:
  Backward(SlicedPass& pass, uint64_t& ops)
      : pass_(pass),
        plan_(pass.plan),
        ops_(ops),
        tensors_(plan_.tensors) {}

  variable_list run();

 private:
  void take_given();
  void run_whole_steps();
  void set_operands();
  void choose_memory();
  void run_slice(const Slice& slice);
  void replay(const Slice& slice);
  void want(const Tensor& leaf);
  void run_row_step(const RowStep& row, const Slice& slice);
  Tensor read(const RowStep& row, size_t index, const Slice& slice);
  bool run_product(const RowStep& row, const Slice& slice);
  void call(const Step& step, torch::jit::Stack& stack);
  void deliver(const Slice& slice, variable_list&& found);
  void write_rows(RowGradient& to, const Slice& slice, const Tensor& gradient);
  variable_list collect();

  SlicedPass& pass_;
  const Plan& plan_;
  uint64_t& ops_;
  std::vector<Tensor> tensors_;  // by number; rows of a slice among them
  std::vector<Tensor> leaves_;   // what was given, but for what carries rows
  std::vector<Tensor> roots_;    // by number: whole tensors that want a gradient, with their graph
  std::vector<std::shared_ptr<Accumulator>> sums_;  // by number
  std::vector<RowGradient> row_gradients_;          // in the order of plan_.sources
  std::vector<Tensor> cuts_;                        // of this slice
  edge_list wanted_;  // of this slice: leaves of sources, cuts and operands, and the sink
  Tensor sink_;
};

// Sets what a step ran under, and puts it back at the end.
class Settings {
 public:
  explicit Settings(const std::vector<Flags>& flags) : flags_(flags) {}
  void set(uint32_t which) {
    if (guard_ && which == set_) {
      return;
    }
    guard_.reset();
    guard_.emplace(flags_[which]);
    set_ = which;
  }

 private:
  const std::vector<Flags>& flags_;
  std::optional<FlagsGuard> guard_;
  uint32_t set_ = 0;
};

void Backward::take_given() {
  for (size_t i = 0; i < plan_.given.size(); ++i) {
    leaves_.push_back(leaf_of(pass_.given[i], pass_.wanted[i]));
    tensors_[plan_.given[i]] = leaves_[i];
  }
  for (const auto& source : plan_.sources) {
    const auto place = std::find(plan_.given.begin(), plan_.given.end(), source.tensor) -
        plan_.given.begin();
    row_gradients_.push_back({static_cast<size_t>(place), source.lead, {}});
    leaves_[place].reset();
    tensors_[source.tensor].reset();
  }
}

void Backward::call(const Step& step, torch::jit::Stack& stack) {
  step.op->handle.callBoxed(&stack);
  ++ops_;
  size_t next = 0;
  for (const auto& result : stack) {
    each_tensor(result, [&](const Tensor& tensor, int) {
      if (const auto number = step.made[next++]; number != kNoTensor) {
        tensors_[number] = tensor;
      }
    });
  }
}

void Backward::run_whole_steps() {
  Settings settings(plan_.flags);
  torch::jit::Stack stack;
  for (const auto& step : plan_.whole_steps) {
    settings.set(step.flags);
    push_arguments(step, stack);
    for (const auto& read : step.reads) {
      put_tensor(stack, read, tensors_[read.tensor]);
    }
    call(step, stack);
  }
}

void Backward::set_operands() {
  roots_.resize(plan_.tensors);
  sums_.resize(plan_.tensors);
  for (const auto number : plan_.operands) {
    auto& tensor = tensors_[number];
    if (!tensor.requires_grad()) {
      continue;
    }
    const bool complete = std::any_of(
        plan_.cuts.begin(), plan_.cuts.end(), [&](const CutTensor& cut) {
          return cut.tensor == number && cut.complete;
        });
    roots_[number] = tensor;
    tensor = leaf_of(tensor, true);
    sums_[number] = std::make_shared<Accumulator>(tensor.detach(), complete);
  }
  sink_ = at::zeros({}).set_requires_grad(true);
}

// A gradient that came in, of which nobody else knows, is read slice by slice; what has been read
// can be written over.
void Backward::choose_memory() {
  for (auto& to : row_gradients_) {
    const auto& like = pass_.given[to.given];
    if (!pass_.wanted[to.given]) {
      continue;
    }
    for (const auto& grad : pass_.grads) {
      if (grad.defined() && is_ours_alone(grad) && grad.sizes() == like.sizes() &&
          grad.scalar_type() == like.scalar_type() && grad.device() == like.device()) {
        to.tensor = grad;
        to.reuses = true;
        return;
      }
    }
  }
}

Tensor Backward::read(const RowStep& row, size_t index, const Slice& slice) {
  const int cut = row.cuts[index];
  if (cut < 0) {
    return tensors_[row.step.reads[index].tensor];
  }
  if (!cuts_[cut].defined()) {
    const auto& whole = tensors_[plan_.cuts[cut].tensor];
    c10::NoGradGuard apart;
    cuts_[cut] = leaf_of(cut_whole(whole.detach(), plan_.cuts[cut], slice), whole.requires_grad());
  }
  return cuts_[cut];
}

// False: it is no product of rows with a matrix that wants a gradient.
bool Backward::run_product(const RowStep& row, const Slice& slice) {
  const auto& step = row.step;
  const bool adds = step.op->name.name == "aten::addmm";
  if ((step.op->name.name != "aten::mm" && !adds) || !step.op->name.overload_name.empty() ||
      !c10::GradMode::is_enabled()) {
    return false;
  }
  const auto& matrix = step.reads.back();
  if (!sums_[matrix.tensor] || row.cuts.back() >= 0 || tensors_[matrix.tensor].is_complex()) {
    return false;
  }
  Factor added;
  if (adds) {
    if (!step.args[3].toScalar().equal(1) || !step.args[4].toScalar().equal(1)) {
      return false;
    }
    added.tensor = read(row, 0, slice);
    const bool is_bias = row.cuts[0] < 0 && added.tensor.dim() == 1 &&
        added.tensor.size(0) == tensors_[matrix.tensor].size(1);
    added.sum = is_bias ? sums_[step.reads[0].tensor] : nullptr;
  }
  tensors_[step.made[0]] = product_of(
      added,
      read(row, adds ? 1 : 0, slice),
      {tensors_[matrix.tensor], sums_[matrix.tensor]},
      row.idle,
      sink_,
      pass_.slices);
  ops_ += row.idle ? 0 : 1;
  return true;
}

void Backward::run_row_step(const RowStep& row, const Slice& slice) {
  const auto& step = row.step;
  if (!run_product(row, slice)) {
    torch::jit::Stack stack;
    push_arguments(step, stack);
    for (size_t i = 0; i < step.reads.size(); ++i) {
      put_tensor(stack, step.reads[i], read(row, i, slice));
    }
    if (row.sizes_arg >= 0) {
      stack[row.sizes_arg] = sliced(row.sizes, row.lead, slice.count);
    }
    if (step.op->name.name == "aten::_reshape_alias") {
      tensors_[step.made[0]] = stack[0].toTensor().view(stack[1].toIntVector());
      ++ops_;
    } else {
      call(step, stack);
    }
    if (step.op->after_op != nullptr) {
      step.op->after_op(tensors_[step.made[0]]);
    }
  }
  for (const auto number : step.made) {
    TORCH_INTERNAL_ASSERT(
        number == kNoTensor || tensors_[number].size(row.lead - 1) == slice.count,
        "retape: ",
        step.op->name.name,
        " made other rows than it was given");
  }
  for (const auto number : row.last) {
    tensors_[number].reset();
  }
}

void Backward::replay(const Slice& slice) {
  Replaying replaying;
  cuts_.assign(plan_.cuts.size(), Tensor());
  for (const auto& source : row_gradients_) {
    tensors_[plan_.given[source.given]] = leaf_of(
        cut_rows(pass_.given[source.given], source.lead, slice), pass_.wanted[source.given]);
  }
  wanted_.clear();
  for (const auto& source : plan_.sources) {
    want(tensors_[source.tensor]);
  }
  Settings settings(plan_.flags);
  for (const auto& row : plan_.row_steps) {
    settings.set(row.step.flags);
    run_row_step(row, slice);
  }
  for (auto& cut : cuts_) {
    want(cut);
    cut.reset();
  }
  for (const auto number : plan_.operands) {
    want(tensors_[number]);
  }
  want(sink_);
}

// An edge that is not valid: nothing is asked for, and nothing comes.
void Backward::want(const Tensor& leaf) {
  wanted_.push_back(
      leaf.defined() && leaf.requires_grad() ? edge_of(leaf) : torch::autograd::Edge());
}

void Backward::run_slice(const Slice& slice) {
  replay(slice);
  edge_list roots, leaves;
  variable_list seeds;
  for (size_t i = 0; i < plan_.outputs.size(); ++i) {
    auto& output = tensors_[plan_.outputs[i].tensor];
    if (pass_.grads[i].defined() && output.requires_grad()) {
      roots.push_back(edge_of(output));
      seeds.push_back(cut_rows(pass_.grads[i], plan_.outputs[i].lead, slice));
    }
    output.reset();
  }
  if (roots.empty()) {
    return;
  }
  std::copy_if(wanted_.begin(), wanted_.end(), std::back_inserter(leaves), [](const auto& edge) {
    return edge.is_valid();
  });
  auto made = gradients(roots, seeds, leaves);
  variable_list found;
  size_t next = 0;
  for (const auto& edge : wanted_) {
    found.push_back(edge.is_valid() ? std::move(made[next++]) : Tensor());
  }
  deliver(slice, std::move(found));
}

void Backward::write_rows(RowGradient& to, const Slice& slice, const Tensor& gradient) {
  if (!to.tensor.defined()) {
    const auto& like = pass_.given[to.given];
    to.tensor = at::empty(like.sizes(), like.options());
  }
  to.written = true;
  const auto rows = cut_rows(to.tensor, to.lead, slice);
  if (!gradient.storage().is_alias_of(rows.storage())) {
    rows.copy_(gradient);
  } else if (gradient.data_ptr() != rows.data_ptr() || gradient.strides() != rows.strides()) {
    rows.copy_(gradient.clone());  // the gradient that came in, seen otherwise
  }
}

// What shows rows of a gradient that came in is read before those are written over.
void Backward::deliver(const Slice& slice, variable_list&& found) {
  size_t next = row_gradients_.size();
  for (const auto& cut : plan_.cuts) {
    if (auto gradient = std::move(found[next++]); gradient.defined()) {
      cut_whole(sums_[cut.tensor]->sum(), cut, slice).add_(gradient);
    }
  }
  for (const auto number : plan_.operands) {
    if (auto gradient = std::move(found[next++]); gradient.defined()) {
      sums_[number]->sum().add_(gradient);
    }
  }
  for (const bool reusing : {false, true}) {
    for (size_t i = 0; i < row_gradients_.size(); ++i) {
      if (row_gradients_[i].reuses == reusing && found[i].defined()) {
        write_rows(row_gradients_[i], slice, found[i]);
      }
    }
  }
}

// From the sums to what was given: through the steps that saw no rows.
variable_list Backward::collect() {
  edge_list roots, leaves;
  variable_list seeds, found(plan_.given.size());
  for (const auto number : plan_.operands) {
    if (sums_[number]) {
      if (auto sum = sums_[number]->take(); sum.defined()) {
        roots.push_back(edge_of(roots_[number]));
        seeds.push_back(std::move(sum));
      }
    }
  }
  std::vector<size_t> places;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (leaves_[i].defined() && pass_.wanted[i]) {
      leaves.push_back(edge_of(leaves_[i]));
      places.push_back(i);
    }
  }
  if (!roots.empty()) {
    auto made = gradients(roots, seeds, leaves);
    for (size_t i = 0; i < places.size(); ++i) {
      found[places[i]] = std::move(made[i]);
    }
  }
  for (auto& source : row_gradients_) {
    if (source.written) {
      found[source.given] = std::move(source.tensor);
    }
  }
  return found;
}

variable_list Backward::run() {
  c10::impl::ExcludeDispatchKeyGuard below(c10::autocast_dispatch_keyset);
  NotIntercepted past_the_tape;
  c10::NoGradGuard no_graph;
  take_given();
  {
    Replaying replaying;
    run_whole_steps();
  }
  set_operands();
  choose_memory();
  for (const auto& slice : slices_of(plan_, pass_.slices)) {
    run_slice(slice);
  }
  return collect();
}

}  // namespace

variable_list backward_in_slices(SlicedPass pass, uint64_t& ops) {
  return Backward(pass, ops).run();
}

}  // namespace retape::detail
