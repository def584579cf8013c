#include <retape/dist/group.h>

#include "dist/group_impl.h"

#include <retape/dist/contribution.h>

#include <ATen/Functions.h>

#include <algorithm>

namespace retape {

CollectiveError::CollectiveError(std::string text, std::vector<int> ranks)
    : Error(text),
      ranks_(std::move(ranks)) {}
CollectiveError::~CollectiveError() = default;

namespace dist {

using detail::check_dense;
using detail::GroupImpl;
using detail::Job;

namespace {

std::string in_quotes(const std::string& name) {
  return "\"" + name + "\"";
}

void check_member(const Group& group, const char* function, int index) {
  if (index < 0 || index >= group.size()) {
    throw UsageError(
        "[" + std::string(function) + "] no index " + std::to_string(index) + " in group " +
        in_quotes(group.name()) + " of " + std::to_string(group.size()) + ".");
  }
}

}  // namespace

void set_while_waiting(WhileWaiting call) {
  detail::CollectiveQueue::set_while_waiting(call);
}

void leave() {
  detail::CollectiveQueue::leave();
}

void Group::withdraw() const {
  impl_->withdraw();
}

void Group::abandon() const {
  impl_->abandon();
}

void Pending::wait() {
  if (job_) {
    const auto job = std::exchange(job_, nullptr);
    std::exchange(group_, nullptr)->wait(*job);
  }
}

Group::Group(
    std::string name,
    std::vector<int> ranks,
    c10::intrusive_ptr<c10d::ProcessGroup> process_group,
    GroupOptions options) {
  if (!process_group || static_cast<int>(ranks.size()) != process_group->getSize()) {
    throw UsageError(
        "[Group] " + in_quotes(name) + ": " + std::to_string(ranks.size()) +
        " ranks for a process group of " +
        std::to_string(process_group ? process_group->getSize() : 0) + ".");
  }
  const int index = process_group->getRank();
  if (ranks.size() == 1) {
    process_group.reset();
  }
  impl_ = std::make_shared<GroupImpl>(
      std::move(name), std::move(ranks), index, options, std::move(process_group));
}

Group Group::alone(std::string name, int rank) {
  return Group(
      std::make_shared<GroupImpl>(std::move(name), std::vector<int>{rank}, 0, GroupOptions{}));
}

const std::string& Group::name() const {
  return impl_->name;
}
const std::vector<int>& Group::ranks() const {
  return impl_->ranks;
}
int Group::size() const {
  return static_cast<int>(impl_->ranks.size());
}
int Group::index() const {
  return impl_->index;
}
int Group::rank() const {
  return impl_->ranks[impl_->index];
}
std::chrono::milliseconds Group::timeout() const {
  return impl_->options.timeout;
}

void Group::sum(const std::string& name, const at::Tensor& tensor, Order order) const {
  sum_async(name, tensor, order).wait();
}

Pending Group::sum_async(const std::string& name, const at::Tensor& tensor, Order order) const {
  detail::check_summable("sum", name, tensor);
  detail::check_writable("sum", name, tensor);
  const auto change = detail::pass(Place::Sum, name, this->name(), size());
  return detail::sum_in_place(*this, name, tensor, change, order);
}

void Group::broadcast(const std::string& name, const at::Tensor& tensor, int from) const {
  check_dense("broadcast", name, tensor);
  check_member(*this, "broadcast", from);
  auto job = std::make_shared<Job>();
  job->call.text = "broadcast " + in_quotes(name) + " " + detail::shape_of(tensor) + " from " +
      std::to_string(ranks()[from]);
  job->stream = detail::stream_of(tensor);
  const auto copy = std::make_shared<at::Tensor>();
  job->send = [=, timeout = timeout()](c10d::ProcessGroup* process_group) -> detail::Works {
    *copy = tensor.detach().clone(at::MemoryFormat::Contiguous);
    if (!process_group) {
      return {};
    }
    *copy = copy->to(detail::carrier(*process_group, tensor.device()));
    c10d::BroadcastOptions options;
    options.rootRank = from;
    options.timeout = timeout;
    std::vector<at::Tensor> tensors{detail::as_real(*copy)};
    return {process_group->getBackend(copy->device().type())->broadcast(tensors, options)};
  };
  if (index() != from) {
    job->finish = [=] {
      const at::NoGradGuard no_grad;
      tensor.copy_(*copy);
    };
  }
  detail::start(*this, std::move(job)).wait();
}

std::vector<at::Tensor> Group::gather(const std::string& name, const at::Tensor& tensor) const {
  check_dense("gather", name, tensor);
  auto job = std::make_shared<Job>();
  job->call.text = "gather " + in_quotes(name) + " " + detail::shape_of(tensor);
  job->stream = detail::stream_of(tensor);
  const auto all = std::make_shared<std::vector<at::Tensor>>();
  job->send = [=, timeout = timeout()](c10d::ProcessGroup* process_group) -> detail::Works {
    auto own = tensor.detach().clone(at::MemoryFormat::Contiguous);
    if (!process_group) {
      all->push_back(std::move(own));
      return {};
    }
    own = own.to(detail::carrier(*process_group, tensor.device()));
    return detail::gather_into(*process_group, own, *all, timeout);
  };
  job->land = [=] {
    for (auto& each : *all) {
      each = each.to(tensor.device());
    }
  };
  detail::start(*this, std::move(job)).wait();
  return std::move(*all);
}

void Group::barrier(const std::string& name) const {
  agree(name, "");
}

void Group::agree(
    const std::string& name, const std::string& text, const std::string& complaint) const {
  if (size() == 1) {
    if (!complaint.empty()) {
      throw CollectiveError(
          "[" + this->name() + "] " + detail::ranks_text(ranks()) + ": " + complaint, ranks());
    }
    return;
  }
  auto job = std::make_shared<Job>();
  job->call.text = "agree on " + in_quotes(name) + (text.empty() ? "" : ": " + text);
  job->call.complaint = complaint;
  detail::start(*this, std::move(job)).wait();
}

}  // namespace dist

}  // namespace retape
