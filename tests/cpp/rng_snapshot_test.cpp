// How the state of a generator is put back for one op. Its symbols are hidden, so its source is
// compiled into the tests.
#include "tape/rng_snapshot.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

namespace retape::testing {
namespace {

// A generator that cannot be put back, as one of a device that has been lost.
struct LostGenerator final : at::CPUGeneratorImpl {
  void set_state(const c10::TensorImpl&) override {
    throw std::runtime_error("the device is lost");
  }
};

TEST(RngSnapshot, ARewindThatFailsLeavesOthersFree) {
  const auto lost = detail::Draw::of(at::make_generator<LostGenerator>());
  EXPECT_THROW(detail::Draw::Rewind{*lost}, std::runtime_error);
  const auto good = detail::Draw::of(at::make_generator<at::CPUGeneratorImpl>());
  auto rewound = std::async(std::launch::async, [&] { detail::Draw::Rewind rewind(*good); });
  const auto state = rewound.wait_for(std::chrono::seconds(30));
  EXPECT_EQ(state, std::future_status::ready);
  if (state != std::future_status::ready) {
    std::quick_exit(1);  // it waits for ever
  }
}

}  // namespace
}  // namespace retape::testing
