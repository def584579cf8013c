// Group: ranks that communicate, and agree on what before any data moves.
//
//   Group group("block0", {4, 5}, process_group);
//   group.sum("weight", gradient);             // in place; on every rank the same bits afterwards
//
// Gloo sums what it is given: two tensors in another order, SUM on one rank and MAX on another,
// float32 against int32, a call that one rank skipped. All of these it adds up without a word, or
// ends the process. So every call here has a fingerprint (sequence number, operation, name, dtype,
// shape), which the ranks compare through the group's store first:
//
//   ranks differ        CollectiveError on every rank, naming the odd ones (all, where no call has
//   most)
//                       and what each would do; at once
//   a rank is missing   CollectiveError on the others within the timeout, naming it
//   a rank dies in it   CollectiveError on the others, naming it
//
// After a CollectiveError the tensors that were given are as they were, on every rank, and the
// process group is broken: each later call raises the same error at once, through any Group. Make a
// new process group, or end the process. A rank that raised in another group and ended is not to
// blame: the error names the rank that it raised for.
//
// Calls run in order, one at a time, on a thread: `sum_async` returns at once. Copies are the same
// group, and all Groups of one process group share that thread, so that calls under way in several
// of them do not mix; calls that do not come through a Group (torch.distributed's own) must not be
// made while one is under way. Threads: any, but ranks must call in the same order.
//
// Cost: one thread and one connection to the store per process group, for as long as that lives;
// five messages a second to the store, that have no reply; and per call, whatever the number of
// ranks, three round trips to the store for the last rank to come. The others have one, and one for
// each look at what was decided: the pauses between looks grow with the wait.
//
// A C++ program ignores SIGPIPE, as Python does: a transport writes to ranks that have ended.
#pragma once

#include <retape/api.h>
#include <retape/dist/topology.h>
#include <retape/error.h>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace c10d {
class ProcessGroup;
}

namespace retape {

// Ranks did not do the same, or one of them is gone. What the call was given is as it was.
class RETAPE_API CollectiveError : public Error {
 public:
  CollectiveError(std::string text, std::vector<int> ranks);
  ~CollectiveError() override;
  const std::vector<int>& ranks() const { return ranks_; }  // to blame; global numbers

 private:
  std::vector<int> ranks_;
};

namespace dist {

namespace detail {
class GroupImpl;
struct Job;
}  // namespace detail

// In which ranks are added up.
//   Any     as the transport likes: Gloo's and NCCL's rings begin with another rank in each part of
//   a tensor. The same
//           bits on every rank and in every run of as many ranks, but not those of adding ranks one
//           after the other.
//   ByRank  the first, then the second, and so on, as one process would. Every rank gets every
//   part: as many times the
//           memory, and more to send, as there are ranks.
enum class Order : uint8_t { Any, ByRank };

struct GroupOptions {
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
  // The rank whose process hosts the store; none: a launcher does (torchrun, run_ranks). Named when
  // the store is gone.
  std::optional<int> store_host;
};

// Before this process ends: ranks that wait for it in a call know at once that it will not come,
// and if it hosts the store, it serves that until they have ended too, for a minute at the longest.
// In Python this is done when the interpreter ends.
RETAPE_API void leave();

// Called again and again on threads that wait for other ranks, without any lock; what it throws
// ends the wait, and leaves the call to itself. Null: nothing is. For interpreters, which look for
// signals there.
using WhileWaiting = void (*)();
RETAPE_API void set_while_waiting(WhileWaiting call);

// A call under way.
class RETAPE_API Pending {
 public:
  Pending() = default;  // nothing to wait for
  void wait();          // until it is done; CollectiveError. A second time does nothing

 private:
  friend class detail::GroupImpl;
  Pending(std::shared_ptr<detail::GroupImpl> group, std::shared_ptr<detail::Job> job)
      : group_(std::move(group)),
        job_(std::move(job)) {}
  std::shared_ptr<detail::GroupImpl> group_;
  std::shared_ptr<detail::Job> job_;
};

class RETAPE_API Group {
 public:
  // `ranks` in the order of their index in the process group. It must have a store (groups made by
  // torch.distributed do). Every member makes its own, of the same name. Nothing is sent yet.
  Group(
      std::string name,
      std::vector<int> ranks,
      c10::intrusive_ptr<c10d::ProcessGroup> process_group,
      GroupOptions options = {});

  // This process alone: every call is done at once.
  static Group alone(std::string name, int rank = 0);

  const std::string& name() const;
  const std::vector<int>& ranks() const;
  int size() const;
  int index() const;  // of this process
  int rank() const;   // the same, among all
  bool leads() const { return index() == 0; }
  std::chrono::milliseconds timeout() const;

  // In place.
  void sum(const std::string& name, const at::Tensor& tensor, Order order = Order::Any) const;
  Pending sum_async(
      const std::string& name, const at::Tensor& tensor, Order order = Order::Any) const;
  void broadcast(const std::string& name, const at::Tensor& tensor, int from = 0) const;

  // One per member, in order; shapes and dtypes are the same.
  std::vector<at::Tensor> gather(const std::string& name, const at::Tensor& tensor) const;

  // Returns when all have called it.
  void barrier(const std::string& name) const;

  // After an interrupt: this process waits for none of its calls that are under way, and others
  // need not wait for it. They raise CollectiveError, which names this rank, unless all have come
  // to the call already. So does Pending::wait.
  void withdraw() const;
  // And it makes no other: who waits in one, or comes to one, raises. The group is broken. Returns
  // when others can know, after seconds at the latest, and does not throw.
  void abandon() const;

  // Raises on every member where `text` is not the same on all. `complaint`: what this rank has
  // against going on; if any has one, all raise, with all of them.
  void agree(
      const std::string& name, const std::string& text, const std::string& complaint = "") const;
  void agree(const Topology& topology) const { agree("topology", topology.text()); }

 private:
  friend class detail::GroupImpl;
  explicit Group(std::shared_ptr<detail::GroupImpl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<detail::GroupImpl> impl_;
};

}  // namespace dist

}  // namespace retape
