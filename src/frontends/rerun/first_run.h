// FirstRun: watches the function in forward.
#pragma once

#include "frontends/rerun/frame.h"
#include "record/op_observer.h"

namespace retape::detail {

class FirstRun final : public Watch {
 public:
  explicit FirstRun(std::shared_ptr<Frame> frame);
  ~FirstRun() override;

  void before(const OpInfo& op, const torch::jit::Stack& stack) override;
  void after(const OpInfo& op, const torch::jit::Stack& stack) override;
  void between() override {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override;

  // Autograd saves a tensor: its slot.
  size_t save(const at::Tensor& tensor);

 private:
  void take_digest(size_t index, const at::Tensor& tensor);
  bool alive_anyway(const at::Tensor& tensor) const;

  std::shared_ptr<Frame> frame_;
  const OpInfo* op_ = nullptr;                          // that is running
  std::vector<std::pair<size_t, at::Tensor>> waiting_;  // saved by it: it may still write them
  const c10::TensorImpl* unwritten_ = nullptr;          // what the op would write in training
};

}  // namespace retape::detail
