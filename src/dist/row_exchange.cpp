#include "dist/row_exchange.h"

#include "dist/group_impl.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

namespace retape::dist::detail {

void exchange(
    const Group& group,
    const std::string& name,
    const std::string& what,
    const std::vector<Message>& mine) {
  auto job = std::make_shared<Job>();
  job->call.text = "exchange \"" + name + "\" " + what;
  job->stream = mine.empty() ? std::nullopt : stream_of(mine.front().rows);
  // Received into copies: what came in part is not seen.
  const auto received = std::make_shared<std::vector<std::pair<at::Tensor, at::Tensor>>>();
  job->move =
      [=, index = group.index(), timeout = group.timeout()](c10d::ProcessGroup* process_group) {
        std::vector<c10::intrusive_ptr<c10d::Work>> works;
        std::vector<at::Tensor> sent;
        for (const auto& message : mine) {
          const auto device = carrier(*process_group, message.rows.device());
          const auto backend = process_group->getBackend(device.type());
          std::vector<at::Tensor> tensors{
              at::empty_like(message.rows, message.rows.options().device(device))};
          if (message.from == index) {
            tensors[0].copy_(message.rows);
            works.push_back(backend->send(tensors, message.to, 0));
            sent.push_back(tensors[0]);
          } else {
            works.push_back(backend->recv(tensors, message.from, 0));
            received->emplace_back(message.rows, tensors[0]);
          }
        }
        for (const auto& work : works) {
          work->wait(timeout);
        }
      };
  job->finish = [received] {
    const at::NoGradGuard no_grad;
    for (const auto& [to, rows] : *received) {
      to.copy_(rows);
    }
  };
  start(group, std::move(job)).wait();
}

}  // namespace retape::dist::detail
