// Runs a step plain and recomputed and compares bits.
#pragma once

#include <retape/retape.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <functional>
#include <vector>

namespace retape::testing {

using torch::Tensor;

inline Policy drop_all() {
  return Policy::full().anchors(false);
}

inline ::testing::AssertionResult same_bits(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) {
    return ::testing::AssertionFailure() << "one of them is undefined";
  }
  if (!a.defined()) {
    return ::testing::AssertionSuccess();
  }
  if (a.sizes() != b.sizes() || a.dtype() != b.dtype()) {
    return ::testing::AssertionFailure()
        << a.toString() << a.sizes() << " against " << b.toString() << b.sizes();
  }
  const auto x = a.detach().contiguous();
  const auto y = b.detach().contiguous();
  if (std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) != 0) {
    return ::testing::AssertionFailure()
        << "bits differ, largest difference "
        << (x.to(torch::kDouble) - y.to(torch::kDouble)).abs().max();
  }
  return ::testing::AssertionSuccess();
}

// A step: from leaves to a loss, everything else made inside.
using Step = std::function<Tensor(const std::vector<Tensor>& leaves)>;

struct Outcome {
  Tensor loss;
  std::vector<Tensor> grads;
  Tensor generator_state;
  Stats stats;
};

inline Outcome run(const Step& step, const std::vector<Tensor>& leaves, const Policy* policy) {
  Outcome outcome;
  std::vector<Tensor> fresh;
  for (const auto& leaf : leaves) {
    fresh.push_back(leaf.detach().clone().set_requires_grad(leaf.requires_grad()));
  }
  torch::manual_seed(1234);
  if (policy != nullptr) {
    Recompute scope(*policy, "test");
    outcome.loss = step(fresh);
    scope.close();
    outcome.loss.backward();
    outcome.stats = scope.stats();
  } else {
    outcome.loss = step(fresh);
    outcome.loss.backward();
  }
  for (const auto& leaf : fresh) {
    outcome.grads.push_back(leaf.grad());
  }
  outcome.generator_state = at::detail::getDefaultCPUGenerator().get_state();
  return outcome;
}

// Bitwise the same under every policy; `replays` says that dropping everything did replay
// something.
inline void expect_same(const Step& step, const std::vector<Tensor>& leaves, bool replays = true) {
  const auto plain = run(step, leaves, nullptr);
  ASSERT_TRUE(plain.grads[0].defined());
  for (const auto& policy : {Policy::none(), drop_all(), Policy::full(), Policy::cheap()}) {
    SCOPED_TRACE(policy.describe());
    const auto other = run(step, leaves, &policy);
    EXPECT_TRUE(same_bits(plain.loss, other.loss));
    for (size_t i = 0; i < plain.grads.size(); ++i) {
      EXPECT_TRUE(same_bits(plain.grads[i], other.grads[i])) << "leaf " << i;
    }
    EXPECT_TRUE(same_bits(plain.generator_state, other.generator_state));
    if (policy.describe() == drop_all().describe() && replays) {
      EXPECT_GT(other.stats.ops_replayed, 0u);
      EXPECT_GT(other.stats.values_dropped, 0u);
    }
  }
}

inline Tensor leaf(at::IntArrayRef sizes, uint64_t seed = 7) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return torch::randn(sizes, generator).set_requires_grad(true);
}

}  // namespace retape::testing
