// Exchange: rows from some members of a group to others, as one all-to-all.
#pragma once

#include <retape/dist/group.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace retape::dist::detail {

// Rows of a tensor from one member of a group to another, by their index.
struct Message {
  int from;
  int to;
  at::Tensor rows;  // contiguous; given on `from`, written on `to`
};

// At most one message for each pair and direction. Every member of the group calls it, and gives
// the messages that it sends or receives; `what` describes the whole call, sizes of all messages
// included, and is the same on all: Gloo ends a process that receives more than it has room for. So
// users have Edge, which knows the sizes. All rows are on `device`.
void exchange(
    const Group& group,
    const std::string& name,
    const std::string& what,
    at::Device device,
    const std::vector<Message>& mine);

}  // namespace retape::dist::detail
