// A hard limit on the memory of the process.
//
// RLIMIT_DATA limits private writable memory: the heap and anonymous mappings, which is where
// tensors, gradients and scratch are. What the process has of it already (torch's own data, stacks)
// does not count: the limit begins here. RLIMIT_AS would count every mapped library as well.
#pragma once

#include "error.h"

#include <malloc.h>
#include <sys/resource.h>

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

namespace train {

inline int64_t private_writable_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmData:", 0) == 0) {
      return std::stoll(line.substr(7)) * 1024;
    }
  }
  throw Refused("--memory-limit: needs /proc/self/status, which this system does not have");
}

// While it lives; what tells of the end has memory again. None: it is not limited.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::optional<int64_t> bytes) {
    if (!bytes) {
      return;
    }
    // Tensors in mappings of their own, given back when they die: what counts is then what is in
    // use, not the holes that it leaves in the heap.
    mallopt(M_MMAP_THRESHOLD, 256 * 1024);
    mallopt(M_TRIM_THRESHOLD, 256 * 1024);
    rlimit limit{};
    if (getrlimit(RLIMIT_DATA, &limit) != 0) {
      refuse_errno("--memory-limit: cannot read the limit");
    }
    const auto before = limit;
    limit.rlim_cur = static_cast<rlim_t>(private_writable_bytes() + *bytes);
    if (setrlimit(RLIMIT_DATA, &limit) != 0) {
      refuse_errno("--memory-limit: cannot set a limit");
    }
    before_ = before;
  }
  ~MemoryLimit() {
    if (before_) {
      setrlimit(RLIMIT_DATA, &*before_);
    }
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  std::optional<rlimit> before_;
};

}  // namespace train
