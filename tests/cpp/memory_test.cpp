#include "support.h"

#include <retape/dry_run.h>

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <set>
#include <thread>

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

// As a transport's threads do (Gloo's, while FSDP gathers).
struct AllocatesElsewhere : torch::autograd::Function<AllocatesElsewhere> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext*, const torch::autograd::tensor_list& grads) {
    std::thread([] { kept() = torch::empty({1 << 20}); }).join();
    return {grads[0]};
  }
  static Tensor& kept() {
    static Tensor tensor;
    return tensor;
  }
};

TEST(MemoryMeter, WhatAForeignThreadAllocatesInBackwardIsNoNewForward) {
  const auto x = torch::rand({1000}).set_requires_grad(true);
  MemoryMeter meter;
  auto loss = AllocatesElsewhere::apply(x.sin()).sin().sum();  // whose backward allocates first
  const auto after_forward = meter.current();
  loss.backward();
  EXPECT_NEAR(static_cast<double>(meter.held()), static_cast<double>(after_forward), 64);
  AllocatesElsewhere::kept() = Tensor();
}

// Fused attention's backward takes scratch in each of its threads.
TEST(MemoryMeter, WhatThreadsOfAKernelAllocateInBackwardIsNoNewForward) {
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  const auto q = leaf({2, 4, 64, 32}), k = leaf({2, 4, 64, 32}), v = leaf({2, 4, 64, 32});
  MemoryMeter meter;
  const auto loss = at::scaled_dot_product_attention(q, k, v).sum();
  const auto after_forward = meter.current();
  loss.backward();
  EXPECT_NEAR(static_cast<double>(meter.held()), static_cast<double>(after_forward), 8);
  at::set_num_threads(before);
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
    forward_sin |= event.phase == Phase::Forward && event.op == "aten::sin" &&
        event.bytes == 262144;
    replayed_sin |= event.phase == Phase::Replay && event.op == "aten::sin" &&
        event.bytes == 262144;
    backward |= event.phase == Phase::Backward && event.bytes > 0;
  }
  EXPECT_TRUE(forward_sin);
  EXPECT_TRUE(replayed_sin);
  EXPECT_TRUE(backward);
}

TEST(MemoryMeter, TimelineNamesTheRegionAndTheShapeThatAnOpReturned) {
  const auto x = leaf({256, 256});
  MeterOptions options;
  options.timeline = true;
  MemoryMeter meter(options);
  {
    Recompute scope(drop_all(), "encoder");
    auto middle = (x * 2).sin();
    Recompute inner(drop_all(), "head");
    auto loss = middle.view({-1}).exp().sum();
    inner.close();
    scope.close();
    middle.reset();
    const auto outside = torch::ones({7}, torch::kInt64);
    loss.backward();
  }
  meter.close();
  std::set<std::string> seen;
  for (const auto& event : meter.timeline()) {
    if (event.bytes > 0) {
      const auto* phase = event.phase == Phase::Replay ? "replayed "
          : event.phase == Phase::Backward             ? "gradient "
                                                       : "";
      seen.insert(phase + event.op + ", " + event.region + ", " + event.shape);
    }
  }
  EXPECT_TRUE(seen.count("aten::sin, encoder, float32 [256, 256]"));
  EXPECT_TRUE(seen.count("aten::exp, head, float32 [65536]"));
  EXPECT_TRUE(seen.count("aten::ones, , int64 [7]"));
  EXPECT_TRUE(seen.count("replayed aten::sin, encoder, float32 [256, 256]"));
  EXPECT_TRUE(seen.count("replayed aten::exp, head, float32 [65536]"));
  EXPECT_TRUE(seen.count("gradient aten::cos, encoder, float32 [256, 256]"));
}

TEST(MemoryMeter, TimelineGoesOnWhileAScopeOpensAndEnds) {
  const auto x = leaf({256, 256});
  MeterOptions options;
  options.timeline = true;
  MemoryMeter meter(options);
  for (int i = 0; i < 3; ++i) {
    Recompute scope(Policy::cheap(), "layer");
    const auto loss = (x * 2).sin().exp().sum();
    scope.close();  // decides, and frees what it drops
    loss.backward();
  }
  meter.close();
  int64_t freed_at_the_end = 0;
  for (const auto& event : meter.timeline()) {
    freed_at_the_end += event.phase == Phase::Forward && event.bytes < 0 ? 1 : 0;
  }
  EXPECT_GT(freed_at_the_end, 0);
}

TEST(DryRun, LeavesIntegersRightAndAllocatesWhatFloatsNeed) {
  const auto order = torch::tensor({2, 0, 1});
  DryRun dry;
  MemoryMeter meter;
  const auto next = (order + 1).remainder(3);  // indices: what control flow may look at
  EXPECT_TRUE(torch::equal(next, torch::tensor({0, 1, 2})));
  const auto before = meter.current();
  const auto products = torch::empty({512, 512}).mm(torch::empty({512, 512}));
  EXPECT_EQ(meter.current() - before, 512 * 512 * 4);
  EXPECT_EQ(dry.flops(), 2u * 512 * 512 * 512);
}

// Samplers draw until every number lies within bounds.
TEST(DryRun, EndsALoopThatWaitsForNoNumberToBeWrong) {
  DryRun dry;
  const auto x = torch::empty({64});
  EXPECT_FALSE(((x < -2) | (x > 2)).any().item<bool>());
  EXPECT_EQ(std::get<1>(x.topk(3)).max().item<int64_t>(), 0);
}

TEST(DryRun, CopiesNothing) {
  const auto from = torch::full({4}, 3.0f);
  auto to = torch::zeros({4});
  {
    DryRun dry;
    to.copy_(from);
  }
  EXPECT_TRUE(torch::equal(to, torch::zeros({4})));
}

// A device's caching allocator, as far as the meter reads it.
class FakeDevice final : public c10::DeviceAllocator {
 public:
  FakeDevice() { c10::SetAllocator(kType, this, /*priority=*/1); }
  ~FakeDevice() override { c10::SetAllocator(kType, nullptr, /*priority=*/1); }

  static constexpr c10::DeviceType kType = c10::kPrivateUse1;

  void take(int64_t bytes) {
    now += bytes;
    most = std::max(most, now);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { most = now; }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& bytes = stats.requested_bytes[0];  // of all pools together
    bytes.current = now;
    bytes.peak = most;
    return stats;
  }
  c10::DataPtr allocate(size_t) override { return {}; }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  int64_t now = 0;
  int64_t most = 0;
};

TEST(MemoryMeter, OfADeviceCountsFromWhereItsAllocatorStood) {
  FakeDevice device;
  device.take(1000);
  device.take(-600);
  MeterOptions options;
  options.device = c10::Device(FakeDevice::kType, 0);
  MemoryMeter meter(options);
  EXPECT_EQ(meter.peak(), 0);  // what came before is not the meter's
  device.take(300);
  device.take(-100);
  EXPECT_EQ(meter.current(), 200);
  EXPECT_EQ(meter.peak(), 300);
  meter.reset_peak();
  EXPECT_EQ(meter.peak(), 200);
  meter.close();
  device.take(5000);
  EXPECT_EQ(meter.current(), 200);
  EXPECT_EQ(meter.peak(), 200);
}

}  // namespace
}  // namespace retape::testing
