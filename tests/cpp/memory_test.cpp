#include "support.h"

#include <c10/core/CPUAllocator.h>

namespace retape::testing {
namespace {

TEST(MemoryMeter, CountsEveryByteFromItsOpening) {
  const auto before = torch::ones({100});
  MemoryMeter meter;
  EXPECT_EQ(meter.current(), 0);
  auto a = torch::ones({1000});
  auto b = torch::ones({10}, torch::kDouble);
  EXPECT_EQ(meter.current(), 4080);
  a = Tensor();
  EXPECT_EQ(meter.current(), 80);
  EXPECT_EQ(meter.peak(), 4080);
  meter.reset_peak();
  EXPECT_EQ(meter.peak(), 80);
}

TEST(MemoryMeter, NestedMetersHaveTheirOwnZero) {
  MemoryMeter outer;
  auto a = torch::ones({100});
  MemoryMeter inner;
  auto b = torch::ones({10});
  a = Tensor();
  EXPECT_EQ(inner.current(), 40);
  EXPECT_EQ(outer.current(), 40);
  EXPECT_EQ(outer.peak(), 440);
}

TEST(MemoryMeter, NothingIsInstalledWithoutOne) {
  auto* const before = c10::GetCPUAllocator();
  {
    MemoryMeter meter;
    EXPECT_NE(c10::GetCPUAllocator(), before);
  }
  EXPECT_EQ(c10::GetCPUAllocator(), before);
}

TEST(MemoryMeter, TensorsOutliveTheMeterThatCountedThem) {
  Tensor a;
  {
    MemoryMeter meter;
    a = torch::ones({1000});
  }
  MemoryMeter later;
  a = Tensor();
  EXPECT_EQ(later.current(), 0);
}

TEST(MemoryMeter, HeldIsWhatBackwardFindsWhenItBegins) {
  const auto x = leaf({256, 256});
  MemoryMeter meter;
  auto loss = x.sin().sin().sum();
  const auto after_forward = meter.current();
  EXPECT_EQ(meter.held(), after_forward);
  loss.backward();
  EXPECT_NEAR(static_cast<double>(meter.held()), static_cast<double>(after_forward), 8);
}

TEST(MemoryMeter, TimelineSaysWhatEachAllocationWasFor) {
  const auto x = leaf({256, 256});
  MeterOptions options;
  options.timeline = true;
  MemoryMeter meter(options);
  {
    Recompute scope(drop_all());
    auto loss = (x * 2).sin().exp().sum();
    scope.close();
    loss.backward();
  }
  meter.close();
  bool forward_sin = false, replayed_sin = false, backward = false;
  int64_t current = 0;
  for (const auto& event : meter.timeline()) {
    current += event.bytes;
    EXPECT_EQ(event.current, current);
    forward_sin |= event.phase == Phase::Forward && event.op == "aten::sin" && event.bytes == 262144;
    replayed_sin |= event.phase == Phase::Replay && event.op == "aten::sin" && event.bytes == 262144;
    backward |= event.phase == Phase::Backward && event.bytes > 0;
  }
  EXPECT_TRUE(forward_sin);
  EXPECT_TRUE(replayed_sin);
  EXPECT_TRUE(backward);
}

}  // namespace
}  // namespace retape::testing
