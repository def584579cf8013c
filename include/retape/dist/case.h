// Case: one configuration in which a step is run by ranks and by one process, to compare the two.
#pragma once

#include <retape/dist/topology.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace retape::dist {

struct Case {
  Topology topology;
  std::map<std::string, double> terms;      // coefficient of each term of the loss; 0: not computed
  at::ScalarType dtype = at::kDouble;       // of parameters and computation
  std::optional<at::ScalarType> wire;       // of what travels between ranks; none: dtype
  int steps = 0;                            // of the optimizer; 0: gradients only
  uint64_t seed = 0;
};

// What a step has come to. The reference has all tensors, a rank those that it holds.
struct Outcome {
  std::map<std::string, at::Tensor> gradients;   // after every reduction, before clipping
  std::map<std::string, at::Tensor> parameters;  // after `steps`; empty without
  std::map<std::string, double> norms;           // as clipping computed them, by the name of what was clipped
};

}  // namespace retape::dist
