// For tests with GoogleTest, which is the user's own: this header is not part of retape.h.
//
//   TEST(Model, TrainsTheSameRecomputed) {
//     EXPECT_SAME_GRADIENTS(*model, [&] { return loss_of(model, batch); });
//   }
//
// Takes what retape::verify takes: a module and a step, or a subject, and options. Fails with the
// verdict's explanation where it is different, and where it is vacuous.
#pragma once

#include <retape/verify.h>
#include <retape/verify_module.h>

#include <gtest/gtest.h>

#include <utility>

#define EXPECT_SAME_GRADIENTS(...) EXPECT_TRUE(::retape::testing::same_gradients(__VA_ARGS__))
#define ASSERT_SAME_GRADIENTS(...) ASSERT_TRUE(::retape::testing::same_gradients(__VA_ARGS__))

namespace retape::testing {

template <typename... Args>
::testing::AssertionResult same_gradients(Args&&... args) {
  const auto verdict = verify(std::forward<Args>(args)...);
  return (verdict ? ::testing::AssertionSuccess() : ::testing::AssertionFailure())
      << verdict.explain();
}

}  // namespace retape::testing
