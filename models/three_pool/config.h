// Sizes and settings of the trainer. The defaults are one for tests, in which every term of the
// loss has a large share of every gradient that it reaches: a term that is small cannot be checked.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace three_pool {

using torch::Tensor;
using Named = std::vector<std::pair<std::string, Tensor>>;

// How far the target with masked sites is from the target as it is, and how many such errors there
// are to divide by.
//   Squares     of differences, one for each element of the output
//   Divergence  Kullback-Leibler's, of the output taken for logits, one for each position
enum class Error { Squares, Divergence };

// What the gradient of a source is divided by: the errors of its rank's part of the batch, or of
// all of it.
enum class SourceCount { Shard, Batch };

struct Config {
  // Target network.
  int64_t layers = 2;  // of two sites each
  int64_t width = 6, hidden = 8;
  int64_t positions = 3;   // in a row of the batch
  int64_t components = 5;  // of the first site; each further one has one more

  int64_t ci_hidden = 12;  // of the CI function

  Error error = Error::Squares;
  int64_t errors_in_a_row() const {
    return error == Error::Squares ? positions * width : positions;
  }

  // Importance: sum over components of mean + beta * mean * log2(1 + sum), of the p-th powers.
  double first_power = 2, last_power = 1.2;  // p falls from one to the other over anneal_steps
  int anneal_steps = 8;
  double beta = 0.5;

  // Persistent sources: Adam upwards.
  int warmup = 2;  // steps before the one that counts
  double source_rate = 0.01;
  SourceCount source_count = SourceCount::Shard;

  // AdamW, of each pool for itself, and the norms to which gradients are clipped.
  double rate = 1e-3;
  double weight_decay = 0.01;
  double ci_norm = 0.5, component_norm = 0.5;

  bool recompute = false;  // the masked runs of the target under retape::Recompute
  // If there is one: how many ops backward has replayed is added to it.
  std::shared_ptr<uint64_t> replayed;
  // Called after each step, with the losses that this rank has.
  std::function<void(int step, const std::map<std::string, double>& losses)> on_step;
};

// Names of the terms, and weights with which they are all large.
inline std::map<std::string, double> all_terms() {
  return {{"faith", 20}, {"imp", 0.02}, {"stoch", 8}, {"ppgd", 2}};
}

}  // namespace three_pool
