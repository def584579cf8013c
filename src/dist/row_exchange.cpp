#include "dist/row_exchange.h"

#include "dist/group_impl.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

namespace retape::dist::detail {

namespace {

at::Tensor bytes_of(const at::Tensor& rows) {
  return rows.view({-1}).view(at::kByte);
}

}  // namespace

void exchange(
    const Group& group,
    const std::string& name,
    const std::string& what,
    at::Device device,
    const std::vector<Message>& mine) {
  // What this rank sends to and receives from each; undefined: nothing.
  std::vector<at::Tensor> outgoing(group.size()), incoming(group.size());
  for (const auto& message : mine) {
    (message.from == group.index() ? outgoing[message.to]
                                   : incoming[message.from]) = bytes_of(message.rows);
  }
  // Buffers are not empty: each rank sends itself a byte.
  outgoing[group.index()] = incoming[group.index()] = at::zeros({1}, at::kByte);
  auto job = std::make_shared<Job>();
  job->call.text = "exchange \"" + name + "\" " + what;
  job->stream = stream_of(at::empty({0}, device));
  const auto received = std::make_shared<at::Tensor>();  // what came in part is not seen
  job->send = [=, timeout = group.timeout()](c10d::ProcessGroup* process_group) -> Works {
    if (!process_group) {
      return {};
    }
    const auto options = at::TensorOptions(carrier(*process_group, device)).dtype(at::kByte);
    std::vector<int64_t> from_each, to_each;
    std::vector<at::Tensor> sent;
    int64_t size = 0;
    for (size_t i = 0; i < outgoing.size(); ++i) {
      to_each.push_back(outgoing[i].defined() ? outgoing[i].numel() : 0);
      from_each.push_back(incoming[i].defined() ? incoming[i].numel() : 0);
      size += from_each.back();
      if (to_each.back() > 0) {
        sent.push_back(outgoing[i].to(options.device()));
      }
    }
    *received = at::empty({size}, options);
    c10d::AllToAllOptions given;
    given.timeout = timeout;
    auto all = at::cat(sent);
    const auto backend = process_group->getBackend(options.device().type());
    return {backend->alltoall_base(*received, all, from_each, to_each, given)};
  };
  job->finish = [=] {
    const at::NoGradGuard no_grad;
    int64_t begin = 0;
    for (const auto& bytes : incoming) {
      if (bytes.defined() && received->defined()) {
        bytes.copy_(received->narrow(0, begin, bytes.numel()));
        begin += bytes.numel();
      }
    }
  };
  start(group, std::move(job)).wait();
}

}  // namespace retape::dist::detail
