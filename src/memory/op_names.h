// Which op a thread is running, for the memory timeline. Observed through RecordFunction, so that
// it also sees what runs where no scope is open.
#pragma once

#include <cstdint>
#include <string>

namespace retape::detail {

class OpNames {
 public:
  OpNames();
  ~OpNames();
  OpNames(const OpNames&) = delete;
  OpNames& operator=(const OpNames&) = delete;

 private:
  uint64_t handle_;
};

// The innermost op that is not itself an allocation; empty where none runs.
std::string current_op_name();

}  // namespace retape::detail
