// The inside of a Group: a name and a timeout for calls that a CollectiveQueue makes.
#pragma once

#include "dist/collective_queue.h"
#include "dist/rank_text.h"

#include <retape/dist/contribution.h>
#include <retape/dist/group.h>

#include <memory>
#include <string>
#include <vector>

namespace retape::dist::detail {

class GroupImpl : public std::enable_shared_from_this<GroupImpl> {
 public:
  // process_group null: alone.
  GroupImpl(
      std::string name,
      std::vector<int> ranks,
      int index,
      GroupOptions options,
      ProcessGroupPtr process_group = {});
  ~GroupImpl();

  Pending start(std::shared_ptr<Job> job);
  void withdraw();
  void abandon();
  void wait(Job& job);

  const std::string name;
  const std::vector<int> ranks;
  const int index;
  const GroupOptions options;

  // For those who hold a Group.
  static const std::shared_ptr<GroupImpl>& of(const Group& group);

 private:
  ProcessGroupPtr process_group_;
  std::shared_ptr<CollectiveQueue> queue_;
};

// The current one of its device; none on a CPU.
std::optional<c10::Stream> stream_of(const at::Tensor& tensor);

// Where the transport takes a tensor of that device: there; or where it has a backend, as NCCL's
// for what is on a CPU.
at::Device carrier(const c10d::ProcessGroup& process_group, at::Device device);

// dtype and sizes as errors show them: Float[2,3].
std::string shape_of(const at::Tensor& tensor);

// The same memory: transports know no complex numbers.
at::Tensor as_real(const at::Tensor& tensor);

// `wire` for what it can hold, which is floating point; else the dtype itself.
at::ScalarType on_wire(at::ScalarType dtype, std::optional<at::ScalarType> wire);
void check_wire(
    const char* who, std::optional<at::ScalarType> wire);  // UsageError: not of floating point

// The sum over the group in the tensor's place, of what a mutation makes of it. No contribution by
// itself.
Pending sum_in_place(
    const Group& group,
    const std::string& name,
    const at::Tensor& tensor,
    Change change = {},
    Order order = Order::Any);

// UsageError: undefined, sparse, or of a class whose ops may be calls of their own (DTensor): a
// rank that computes with it alone would wait for the others.
void check_dense(const char* function, const std::string& name, const at::Tensor& tensor);
// And of a dtype that transports can add.
void check_summable(const char* function, const std::string& name, const at::Tensor& tensor);
// UsageError: what arrives could not be written there, which must not turn out after others have
// what they wanted.
void check_writable(const char* function, const std::string& name, const at::Tensor& tensor);

// Of each rank one tensor like `own`, into `all`.
Works gather_into(
    c10d::ProcessGroup& process_group,
    const at::Tensor& own,
    std::vector<at::Tensor>& all,
    Milliseconds timeout);

// Starts a call of `group`; the functions of `job` are set.
Pending start(const Group& group, std::shared_ptr<Job> job);

// The sum over the group of what `make` returns, for which it is called on the queue's thread.
// `use` gets it in wait, on the caller's. `call.text` says the order, if it matters.
Pending sum_of(
    const Group& group,
    Call call,
    const at::Tensor& like,
    std::function<at::Tensor()> make,
    std::function<void(const at::Tensor&)> use,
    Order order = Order::Any);

// What begins the text of a call that sums: "sum", and the order.
std::string sum_text(Order order);

}  // namespace retape::dist::detail
