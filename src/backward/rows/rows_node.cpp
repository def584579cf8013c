#include "backward/rows/rows_node.h"

#include "backward/rows/sliced_backward.h"
#include "replay/replay_count.h"
#include "residency/refillable.h"
#include "tape/errors.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

namespace retape::detail {

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

class RowsBackward final : public torch::autograd::Node {
 public:
  RowsBackward(SlicedCall call, const std::vector<at::Tensor>& given) : call_(std::move(call)) {
    for (const auto& tensor : given) {
      const bool is_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
      numbers_.push_back(is_number ? tensor : at::Tensor());
      saved_.emplace_back(is_number ? at::Tensor() : tensor, /*is_output=*/false);
      add_next_edge(
          tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor)
                                 : torch::autograd::Edge());
    }
  }

  variable_list apply(variable_list&& grads) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (c10::GradMode::is_enabled()) {
      raise(UsageError(
          "[checkpoint] " + where(call_.region.get()) +
          "create_graph=True: a backward in slices of rows has no graph of its own. Fix: leave out "
          "rows."));
    }
    SlicedPass pass{call_.plan, call_.slices, {}, {}, std::move(grads)};
    for (size_t i = 0; i < saved_.size(); ++i) {
      auto tensor = numbers_[i].defined() ? numbers_[i] : saved_[i].unpack();
      pass.wanted.push_back(task_should_compute_output(i));
      fill(tensor.storage());
      pass.given.push_back(tensor.requires_grad() ? tensor.detach() : tensor);
    }
    uint64_t ops = 0;
    auto found = backward_in_slices(std::move(pass), ops);
    count(ops);
    return found;
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& saved : saved_) {
      saved.reset_data();
    }
  }

  std::string name() const override { return "RetapeRowsBackward"; }

 private:
  void count(uint64_t ops) {
    count_replayed(ops);
    {
      TapeLock lock(*call_.tape);
      call_.region->counters.ops_replayed.add(ops);
    }
    std::lock_guard<std::mutex> lock(call_.counts->mutex);
    call_.counts->ops_replayed += ops;
  }

  SlicedCall call_;
  std::vector<at::Tensor> numbers_;  // in a tensor's clothes; nobody changes them
  std::vector<SavedVariable> saved_;
};

}  // namespace

void set_sliced_history(
    SlicedCall call, const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& outputs) {
  const auto node = c10::make_intrusive<RowsBackward>(std::move(call), given);
  for (const auto& output : outputs) {
    torch::autograd::set_history(output, node);
  }
}

}  // namespace retape::detail
