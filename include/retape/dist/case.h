// Case: one configuration in which a step is run by ranks and by one process, to compare the two.
#pragma once

#include <retape/dist/topology.h>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace retape::dist {

struct RETAPE_API Case {
  Topology topology;
  std::map<std::string, double> terms;      // coefficient of each term of the loss; 0: not computed
  at::ScalarType dtype = at::kDouble;       // of parameters and computation
  std::optional<at::ScalarType> wire = {};  // of what travels between ranks; none: dtype
  int steps = 0;                            // of the optimizer; 0: gradients only
  uint64_t seed = 0;
  int microbatches = 1;  // that a step which accumulates takes its rows in

  // Rows of a rank, by microbatch, of very different sizes: even ones hide a mean of means. As many
  // as there are rows, if those are fewer.
  std::vector<RowRange> cut(RowRange rows) const;
  // GradCheck's, one for all copies: somebody has called `cut`.
  std::shared_ptr<std::atomic<bool>> was_cut = nullptr;
};

// What a step has come to. The reference has all tensors, a rank those that it holds. One that is
// not defined is held, and has no numbers: a rank leaves out the names of what it does not hold.
struct Outcome {
  std::map<std::string, at::Tensor> gradients;  // after every reduction, before clipping
  std::map<std::string, at::Tensor>
      parameters;  // after `steps`; the reference's also after 0: as they begin
  std::map<std::string, double>
      norms;  // as clipping computed them, by the name of what was clipped
  std::map<std::string, double> losses = {};  // as they are logged: of all ranks together
};

}  // namespace retape::dist
