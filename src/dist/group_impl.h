// The inside of a Group: a thread that makes its calls, one after the other, and one that looks whether
// other ranks are in trouble.
#pragma once

#include "dist/agreement.h"

#include <retape/dist/group.h>

#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace retape::dist::detail {

// One call. `move` runs on the group's thread, after the ranks have agreed: it touches nothing that the
// caller can see, so an error leaves the caller's tensors as they were, and a tape that records the
// caller's ops sees none of it. `finish` runs in wait, on the caller's thread.
class Job {
 public:
  Call call;
  std::function<void(c10d::ProcessGroup*)> move;  // null: agreement is all
  std::function<void()> finish;
  std::optional<c10::Stream> stream;  // current when the call was made
  bool done = false;
  std::exception_ptr error;
};

class GroupImpl : public std::enable_shared_from_this<GroupImpl> {
 public:
  GroupImpl(std::string name, std::vector<int> ranks, int index, GroupOptions options);
  void connect(c10::intrusive_ptr<c10d::ProcessGroup> process_group);
  ~GroupImpl();

  Pending start(std::shared_ptr<Job> job);
  void wait(Job& job);

  const std::string name;
  const std::vector<int> ranks;
  const int index;
  const GroupOptions options;

  // For those who hold a Group.
  static const std::shared_ptr<GroupImpl>& of(const Group& group);

 private:
  struct Courier;
  std::shared_ptr<Courier> courier_;  // null: alone
  std::thread thread_;
  std::thread sentry_;
};

// dtype and sizes as errors show them: f32[2,3].
std::string shape_of(const at::Tensor& tensor);

// Starts a call of `group`; `job->move` and `finish` are set.
Pending start(const Group& group, std::shared_ptr<Job> job);

// The sum over the group of what `make` returns, for which it is called on the group's thread.
// `use` gets it in wait, on the caller's.
Pending sum_of(
    const Group& group,
    Call call,
    const at::Tensor& like,
    std::function<at::Tensor()> make,
    std::function<void(const at::Tensor&)> use);

}  // namespace retape::dist::detail
