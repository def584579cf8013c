#include <ranks/polling_store.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <thread>

namespace ranks {
namespace {

using std::chrono::milliseconds;

TEST(PatientStore, HasWhatTheStoreBehindItHas) {
  const auto behind = c10::make_intrusive<c10d::HashStore>();
  PatientStore store(behind, milliseconds(1000));
  store.set("a", "1");
  EXPECT_EQ(behind->get_to_str("a"), "1");
  EXPECT_EQ(store.get_to_str("a"), "1");
  EXPECT_EQ(store.add("n", 3), 3);
  EXPECT_EQ(store.compareSet("a", "1", "2"), "2");
  EXPECT_TRUE(store.check({"a", "n"}));
  EXPECT_TRUE(store.deleteKey("a"));
  EXPECT_FALSE(store.clone()->check({"a"}));
}

TEST(PatientStore, AWaitInVainEndsWithoutAWord) {
  PatientStore store(c10::make_intrusive<c10d::HashStore>(), milliseconds(20));
  ::testing::internal::CaptureStderr();
  EXPECT_THROW(store.get("never"), c10::DistStoreError);
  EXPECT_THROW(store.wait({"never"}, milliseconds(1)), c10::DistStoreError);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(PatientStore, WhatComesLaterIsSeen) {
  const auto behind = c10::make_intrusive<c10d::HashStore>();
  PatientStore store(behind, std::chrono::minutes(1));
  std::thread other([&] { behind->set("late", std::vector<uint8_t>{7}); });
  EXPECT_EQ(store.get("late"), std::vector<uint8_t>{7});
  other.join();
}

}  // namespace
}  // namespace ranks
