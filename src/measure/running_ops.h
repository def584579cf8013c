// Which op a thread is running, for the memory timeline; and tells observers of allocations what
// ops return. Through RecordFunction, so that it also sees what runs where no scope is open.
#pragma once

#include <cstdint>
#include <string>

namespace retape::detail {

class RunningOps {
 public:
  RunningOps();
  ~RunningOps();
  RunningOps(const RunningOps&) = delete;
  RunningOps& operator=(const RunningOps&) = delete;

 private:
  uint64_t handle_;
};

// The innermost op that is not itself an allocation; empty where none runs.
std::string current_op_name();

// A node of a backward that makes no graph has switched grad mode on: it runs a forward again, as
// torch.utils.checkpoint does. Known while RunningOps is there.
bool runs_forward_in_backward();

}  // namespace retape::detail
