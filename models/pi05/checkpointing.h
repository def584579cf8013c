// One layer of both towers as a call, and the ways in which the model may make that call.
//
// A layer is given everything at once, as in the original: the streams of both towers, and the
// cache, which it writes or reads from within. Nothing about the cache is an argument or a result
// that autograd could see; that is what makes the layer hard to run twice.
#pragma once

#include <retape/checkpoint.h>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace pi05 {

using torch::Tensor;

// One tensor per tower: 0 the prefix, 1 the suffix. Undefined for a tower that takes no part.
using Streams = std::array<Tensor, 2>;

// Keys (rotated) and values of one layer: [batch, tokens, key-value heads, head size].
struct CacheEntry {
  Tensor key;
  Tensor value;
};

using Cache = std::map<int64_t, CacheEntry>;  // by layer

enum class CacheUse { Write, Read };

struct LayerCall {
  int64_t layer;
  Streams streams;
  Streams conditions;  // of adaptive norms, per token; undefined for the prefix
  Tensor mask;         // bool [batch, queries, keys]
  Tensor positions;    // [batch, queries]
  Cache* cache;        // the caller's; outlives backward, if the call is to be made again there
  CacheUse use;
  int64_t cross_tokens;  // how many tokens of the prefix the suffix may see: those are written
};

using LayerFunction = std::function<Streams(const LayerCall&)>;

// Makes the call, once or more often. An empty one stands for a plain call.
using Checkpointing = std::function<Streams(const LayerFunction&, const LayerCall&)>;

// Retape: the call is made once, backward replays what it recorded. Regions are named "prefix.0",
// "suffix.2".
inline Checkpointing replayed(retape::Policy policy = retape::CheckpointOptions().policy) {
  return [policy](const LayerFunction& run, const LayerCall& call) {
    retape::CheckpointOptions options;
    options.name = (call.use == CacheUse::Write ? "prefix." : "suffix.") +
        std::to_string(call.layer);
    options.policy = policy;
    return retape::checkpoint(options, run, call);
  };
}

}  // namespace pi05
