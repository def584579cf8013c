// Listener: writes the program of what runs on this thread while it lives.
#pragma once

#include "backward/rows/program.h"
#include "record/op_observer.h"

#include <unordered_map>

namespace retape::detail {

class Listener final : public Watch {
 public:
  void before(const OpInfo& op, const torch::jit::Stack& stack) override;
  void after(const OpInfo& op, const torch::jit::Stack& stack) override;
  void between() override;
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override { return nullptr; }

  Program& program() { return program_; }
  uint32_t number_of(const at::Tensor& tensor);  // as given, if it is new

  // Autograd knows a tensor that a step made as the step left it: no function of the user's own
  // took it for its result, nobody made it a leaf.
  bool is_as_made(const at::Tensor& tensor) const;

 private:
  void refuse(const OpInfo& op, const std::string& why);
  void take(const OpInfo& op, size_t arg, const c10::IValue& value);
  uint32_t made(const at::Tensor& tensor);

  Program program_;
  std::unordered_map<const c10::TensorImpl*, uint32_t> numbers_;
  // Made in here by an op that is no view; the weak references pin the addresses.
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> born_;
  Step step_;  // of the op that is running
  c10::SmallVector<const c10::StorageImpl*, 4> touched_;
};

}  // namespace retape::detail
