// GlobalCount: how many there are on all ranks together; the only denominator.
//
//   const auto tokens = count_global("tokens", mask.sum().item<int64_t>(), group);
//   normalize(losses.sum(), tokens).value().backward();     // Partial: gradients sum to the mean's
//
// A step with several denominators counts them all in one sum:
//
//   const StepCounts counts({{"tokens", tokens}, {"images", images}}, group);
//   normalize(losses.sum(), counts["tokens"]);
//
// A mean over a rank's own tokens, averaged over ranks, is not the mean over all tokens unless
// every rank has as many. So there is no way to make a GlobalCount but to count globally.
#pragma once

#include <retape/dist/group.h>
#include <retape/dist/summand.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace retape::dist {

class RETAPE_API GlobalCount {
 public:
  int64_t value() const { return value_; }
  const std::vector<int>& ranks() const { return ranks_; }  // that have counted

 private:
  friend class StepCounts;
  GlobalCount(int64_t value, std::vector<int> ranks) : value_(value), ranks_(std::move(ranks)) {}
  int64_t value_;
  std::vector<int> ranks_;
};

// What a step divides by: counted once, in one sum over the group, and the same until the step is
// over. There is nothing to look up that one rank might have and another not. UsageError, on all
// ranks: a count below zero, and where a count is asked for: it was not counted, or there is none
// anywhere.
class RETAPE_API StepCounts {
 public:
  StepCounts(const std::vector<std::pair<std::string, int64_t>>& local, const Group& group);
  const GlobalCount& operator[](const std::string& name) const;

 private:
  std::string group_;
  std::map<std::string, GlobalCount> counts_;
};

// One of them, in a sum of its own. UsageError, on all ranks: a count below zero, or none anywhere.
RETAPE_API GlobalCount count_global(const std::string& name, int64_t local, const Group& group);

// sum / count: this rank's part of the mean over all.
RETAPE_API Partial<at::Tensor> normalize(const at::Tensor& sum, const GlobalCount& count);
// The same for a sum over `group`. UsageError: other ranks have counted.
RETAPE_API Partial<at::Tensor> normalize(
    const at::Tensor& sum, const GlobalCount& count, const Group& group);

// For logs: what the ranks of the group sum up to, divided by how many they have counted together;
// the same number on each. No graph, and nothing that the self-test of GradCheck breaks: it reaches
// no gradient. UsageError, on all ranks, as for a count.
RETAPE_API double global_mean(
    const std::string& name, double sum, int64_t count, const Group& group);

// The sum over the group, with the gradient of the local part: for functions of a global sum, each
// rank's backward gives its Partial.
//
//   auto total = global_residual("usage", usage, group);
//   loss = (total * log2(1 + total)).sum();
//
// torch.distributed.nn.functional.all_reduce has the same value, and multiplies the gradient of a
// loss that every rank computes by the number of ranks. That one is right where each rank's loss is
// of its own rows and depends on the sum, as in a batch norm: global_residual leaves out what other
// ranks' rows contribute to the gradient.
RETAPE_API at::Tensor global_residual(
    const std::string& name, const at::Tensor& local, const Group& group);

}  // namespace retape::dist
