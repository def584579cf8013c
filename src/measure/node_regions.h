// Which region of forward an op of backward belongs to.
//
// A node of autograd has the number that its thread's counter had when forward made it, just before
// the op ran and allocated. So each allocation in forward tells which region the nodes from that
// number on are of.
#pragma once

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/node.h>

#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <utility>

namespace retape::detail {

class RegionsOfNodes {
 public:
  // On the thread that runs forward, when an op of `region` allocates; "" outside of regions.
  void note(const std::string& region) {
    const auto next = at::sequence_number::peek();
    if (next > 0) {
      regions_.emplace(std::pair(at::RecordFunction::currentThreadId(), next - 1), region);
    }
  }

  // On a thread that runs backward: of the node that it runs. "" for gradients of leaves.
  std::string of_current_node() const {
    const auto node = torch::autograd::get_current_node();
    if (!node || node->sequence_nr() == std::numeric_limits<uint64_t>::max()) {
      return "";
    }
    const auto after = regions_.upper_bound({node->thread_id(), node->sequence_nr()});
    if (after == regions_.begin() || std::prev(after)->first.first != node->thread_id()) {
      return "";
    }
    return std::prev(after)->second;
  }

 private:
  std::map<std::pair<uint64_t, uint64_t>, std::string> regions_;  // by thread and number
};

}  // namespace retape::detail
