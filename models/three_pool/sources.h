// Sources: for each row, position and component how far a mask is from its lower bound, moved by Adam
// towards where the target's error is larger, and kept from step to step.
//
// They belong to the rank that has the row, and are never summed. Adam is nearly blind to the scale of a
// gradient, but not quite, because of its eps: so their gradient is that of the error divided by the size
// of the whole batch, as one process would divide it, and not of the rank's part.
#pragma once

#include <retape/dist/topology.h>

#include <three_pool/target.h>

namespace three_pool {

class Sources {
 public:
  Sources(const Config& config, uint64_t seed, retape::dist::RowRange rows, at::ScalarType dtype);

  // By site, [rows, positions, components + 1], leaves.
  const std::vector<Tensor>& values() const { return values_; }

  // `mean_error` is a function of values(); called `steps` times, with a step upwards after each.
  void warm_up(int steps, const std::function<Tensor()>& mean_error);

  // One step upwards, then back into [0, 1].
  void ascend(const std::vector<Tensor>& gradients);

 private:
  std::vector<Tensor> values_;
  torch::optim::Adam adam_;
};

}  // namespace three_pool
