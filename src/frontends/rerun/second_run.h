// SecondRun: watches the function in backward, and takes what it saves.
#pragma once

#include "frontends/rerun/frame.h"
#include "record/op_observer.h"

#include <optional>

namespace retape::detail {

class SecondRun final : public Watch {
 public:
  // For slot `wanted`; along the way it fills every slot that was not given out yet.
  SecondRun(Frame& frame, Pass& pass, size_t wanted);
  ~SecondRun() override;

  void before(const OpInfo& op, const torch::jit::Stack& stack) override;
  void after(const OpInfo& op, const torch::jit::Stack& stack) override;
  void between() override;
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override;

  void save(const at::Tensor& tensor);

  // The function has ended, or was stopped: ReplayMismatch if it did not save what forward saved.
  void check() const;

 private:
  void take(size_t index, const at::Tensor& tensor, const OpInfo* by);  // by: that saved it
  void look_at_devices(const OpInfo& op, const torch::jit::Stack& stack);
  void mismatch(const char* kind, const OpInfo* op, const std::string& what);
  void found(const char* kind, const OpInfo* op, const std::string& what);
  std::string ops() const;

  Frame& frame_;
  Pass& pass_;
  const size_t wanted_;
  const size_t expected_;  // so many has the first run saved so far: it may not have ended
  size_t saved_ = 0;
  const OpInfo* op_ = nullptr;  // that is running
  std::vector<std::pair<size_t, at::Tensor>> waiting_;
  bool over_ = false;  // everything is there
  std::optional<std::string> mismatch_;
  std::vector<const OpInfo*> ops_;
  bool elsewhere_ = false;  // a tensor is on another device, and that is told
  Outside later_;           // what this run must leave as it found it
};

}  // namespace retape::detail
