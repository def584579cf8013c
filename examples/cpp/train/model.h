// A small GPT, op for op the one of examples/python/train/gpt.py: pre-norm, attention written out,
// dropout on. It knows nothing of Retape.
#pragma once

#include "options.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <limits>

namespace train {

namespace nn = torch::nn;

struct AttentionImpl : nn::Module {
  explicit AttentionImpl(const Options& size)
      : heads(size.heads),
        dropout(size.dropout),
        qkv(size.width, 3 * size.width),
        out(size.width, size.width) {
    register_module("qkv", qkv);
    register_module("out", out);
    future = register_buffer(
        "future", torch::ones({size.context, size.context}, torch::kBool).triu(1));
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto batch = x.size(0), length = x.size(1), width = x.size(2);
    auto parts = qkv(x).chunk(3, -1);
    for (auto& part : parts) {
      part = part.view({batch, length, heads, -1}).transpose(1, 2);
    }
    const double scale = std::pow(static_cast<double>(width / heads), -0.5);
    auto scores = at::matmul(parts[0], parts[1].transpose(-2, -1)) * scale;
    const auto unseen = future.slice(0, 0, length).slice(1, 0, length);
    auto weights = scores.masked_fill(unseen, -std::numeric_limits<double>::infinity()).softmax(-1);
    weights = torch::dropout(weights, dropout, is_training());
    const auto mixed =
        at::matmul(weights, parts[2]).transpose(1, 2).reshape({batch, length, width});
    return torch::dropout(out(mixed), dropout, is_training());
  }

  int64_t heads;
  double dropout;
  nn::Linear qkv, out;
  at::Tensor future;
};
TORCH_MODULE(Attention);

struct BlockImpl : nn::Module {
  explicit BlockImpl(const Options& size)
      : norm1(nn::LayerNormOptions({size.width})),
        attention(size),
        norm2(nn::LayerNormOptions({size.width})),
        up(size.width, 4 * size.width),
        down(4 * size.width, size.width),
        dropout(size.dropout) {
    register_module("norm1", norm1);
    register_module("attention", attention);
    register_module("norm2", norm2);
    register_module("up", up);
    register_module("down", down);
  }

  at::Tensor forward(at::Tensor x) {
    x = x + attention(norm1(x));
    const auto hidden = down(at::gelu(up(norm2(x))));
    return x + torch::dropout(hidden, dropout, is_training());
  }

  nn::LayerNorm norm1;
  Attention attention;
  nn::LayerNorm norm2;
  nn::Linear up, down;
  double dropout;
};
TORCH_MODULE(Block);

// Next-character loss of a batch of ids, one column longer than the context.
struct GptImpl : nn::Module {
  GptImpl(int64_t vocabulary, const Options& size)
      : tokens(vocabulary, size.width),
        norm(nullptr),
        head(nullptr) {
    positions = register_parameter("positions", torch::zeros({size.context, size.width}));
    register_module("tokens", tokens);
    register_module("blocks", blocks);
    for (int64_t i = 0; i < size.layers; ++i) {
      blocks->push_back(Block(size));
    }
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({size.width})));
    head = register_module(
        "head", nn::Linear(nn::LinearOptions(size.width, vocabulary).bias(false)));
    for (auto& parameter : parameters()) {
      if (parameter.dim() > 1) {
        nn::init::normal_(parameter, 0, 0.02);
      }
    }
  }

  at::Tensor forward(const at::Tensor& ids) {
    auto x = tokens(ids.slice(1, 0, -1)) + positions;
    for (const auto& block : *blocks) {
      x = block->as<BlockImpl>()->forward(x);
    }
    const auto logits = head(norm(x));
    return at::cross_entropy_loss(logits.flatten(0, 1), ids.slice(1, 1).flatten());
  }

  nn::Embedding tokens;
  at::Tensor positions;
  nn::ModuleList blocks;
  nn::LayerNorm norm;
  nn::Linear head;
};
TORCH_MODULE(Gpt);

}  // namespace train
