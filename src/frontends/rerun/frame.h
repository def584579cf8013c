// Frame: one call of a function under rerun: what it was given, under which conditions, and what
// autograd saved in it. The tokens that autograd holds own it; so it dies with its graph.
//
//   forward    FirstRun   i-th save: a token, and a digest once the op that saved it has ended
//   backward   SecondRun  i-th save: the tensor that token i stands for, compared with the digest
#pragma once

#include "check/digest.h"
#include "frontends/rerun/rerun_context.h"
#include "frontends/rerun/side_effects.h"

#include <retape/rerun.h>

#include <c10/core/SafePyObject.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <map>
#include <mutex>
#include <optional>

namespace retape::detail {

// One tensor that autograd saved.
struct Slot {
  const OpInfo* op = nullptr;  // that saved it; null: a custom function
  at::Tensor held;             // a parameter or a buffer, which is alive anyway
  uint32_t version = 0;        // of it
  bool garbage = false;        // memory that the op did not write after all
  Digest digest;
};

// What a second run brought back for one backward, or for all backwards of a GraphExecGroup.
struct Pass {
  std::mutex mutex;  // held while the function runs: another thread of the same backward waits
  std::vector<at::Tensor> tensors;
  std::vector<uint32_t> versions;  // of the tensors when they were taken
  std::vector<bool> given;         // to autograd, in this pass
  std::vector<int> readers;        // of a group: which backward has read the slot; -1: none
};

// Pass of a torch.utils.checkpoint.GraphExecGroup. Owns the group, whose address is its identity.
struct GroupPass {
  c10::SafePyObject group;
  std::shared_ptr<Pass> pass;
};

class Frame final : public std::enable_shared_from_this<Frame> {
 public:
  Frame(RerunOptions options, const Tensors& inputs, RerunScope::Again again);

  const at::Tensor& held(size_t index) const { return slots_[index].held; }

  // Tensor of slot `index`, for the backward that is running.
  at::Tensor bring(size_t index);

  // The running backward reads slot `index`. UsageError, where another one of its GraphExecGroup
  // has.
  void note_reader(size_t index);

 private:
  friend class FirstRun;
  friend class SecondRun;

  std::shared_ptr<Pass> current_pass();
  std::shared_ptr<Pass> pass_of(const c10::SafePyObject& group);
  void run_again(Pass& pass, size_t wanted);
  void check_versions() const;  // nothing that is held was changed in place since
  // Where an op has made something, if that is not among devices_.
  std::optional<c10::Device> new_device(const OpInfo& op, const torch::jit::Stack& stack) const;

  const RerunOptions options_;
  std::vector<torch::autograd::SavedVariable> inputs_;
  const RerunScope::Again again_;
  Conditions conditions_;
  Outside outside_{Outside::kSmall};  // of the first run
  std::vector<Slot> slots_;
  std::vector<const OpInfo*> ops_;    // of the first run, for errors in debug mode
  std::vector<c10::Device> devices_;  // where it made something, for an observer
  bool complete_ = false;             // the first run has ended

  std::mutex mutex_;                             // of both
  std::map<int, std::shared_ptr<Pass>> passes_;  // by graph task, until it ends
  std::vector<GroupPass> groups_;
};

}  // namespace retape::detail
