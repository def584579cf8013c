// Steps for tests of verify.
#pragma once

#include "support.h"

#include <algorithm>

namespace retape::testing {

using Kind = Verdict::Kind;

// Attention, batch norm and dropout around a few matrices.
struct VerifyBlockImpl : torch::nn::Module {
  VerifyBlockImpl()
      : qkv(register_module("qkv", torch::nn::Linear(8, 24))),
        norm(register_module("norm", torch::nn::BatchNorm1d(8))),
        up(register_module("up", torch::nn::Linear(8, 16))),
        down(register_module("down", torch::nn::Linear(16, 8))) {}

  Tensor forward(const Tensor& x) {
    const auto parts = qkv(x).chunk(3, -1);
    const auto weights = torch::softmax(parts[0].matmul(parts[1].transpose(-1, -2)), -1);
    auto h = x + torch::dropout(weights.matmul(parts[2]), 0.2, is_training());
    h = norm(h.transpose(1, 2)).transpose(1, 2);
    return h + torch::dropout(down(torch::gelu(up(h))), 0.2, is_training());
  }

  torch::nn::Linear qkv;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear up, down;
};
using VerifyBlock = Layer<VerifyBlockImpl>;

inline VerifyBlock made() {
  torch::manual_seed(1);
  return VerifyBlock();
}

inline VerifyOptions by_itself() {
  VerifyOptions options;
  options.scope = false;
  return options;
}

// A step on one weight w of four elements, made anew for every start.
using Function = std::function<Tensor(const Tensor& w)>;

inline Subject step_of(Function function, NamedTensors more = {}) {
  return [=] {
    const auto w = torch::linspace(0.5, 2, 4).set_requires_grad(true);
    Start start;
    start.leaves = {{"w", w}};
    start.leaves.insert(start.leaves.end(), more.begin(), more.end());
    start.forward = [=] { return retape::Outcome{{{"loss", function(w)}}, {}}; };
    return start;
  };
}

inline Tensor square_sin(const Tensor& w) {
  return w.square().sin().sum();
}

inline bool says(const std::vector<std::string>& reasons, const std::string& text) {
  return std::any_of(reasons.begin(), reasons.end(), [&](const auto& reason) {
    return reason.find(text) != std::string::npos;
  });
}

#define EXPECT_VACUOUS(verdict, text)                        \
  do {                                                       \
    const auto seen = verdict;                               \
    EXPECT_EQ(seen.kind, Kind::Vacuous) << seen.explain();   \
    EXPECT_TRUE(says(seen.vacuous, text)) << seen.explain(); \
    EXPECT_NE(seen.explain().find(text), std::string::npos); \
  } while (false)

}  // namespace retape::testing
