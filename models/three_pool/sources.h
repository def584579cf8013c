// Sources: for each row, position and component how far a mask is from its lower bound, moved by
// Adam towards where the target's error is larger, and kept from step to step.
//
// They belong to the rank that has the row, and are never summed. The gradient by which they go is
// that of the error divided by a count of errors: of the rank's own part of the batch
// (Config::source_count), or of the whole. Adam is nearly blind to the scale of a gradient, but not
// quite, because of its eps.
#pragma once

#include <retape/dist/topology.h>

#include <three_pool/target.h>

namespace three_pool {

class Sources {
 public:
  // Of some rows; `topology` says which rank of ppgd has each of them.
  Sources(
      const Config& config,
      uint64_t seed,
      retape::dist::RowRange rows,
      at::ScalarType dtype,
      const retape::dist::Topology& topology);

  // By site, [rows, positions, components + 1], leaves.
  const std::vector<Tensor>& values() const { return values_; }

  // `error`, a sum, is a function of values(); called `steps` times, with a step upwards after
  // each.
  void warm_up(int steps, const std::function<Tensor()>& error);

  // One step upwards, by gradients of the sum of errors, then back into [0, 1].
  void ascend(const std::vector<Tensor>& gradients);

 private:
  std::vector<Tensor> values_;
  Tensor counts_;  // by row, what its gradient is divided by: [rows, 1, 1]
  torch::optim::Adam adam_;
};

}  // namespace three_pool
