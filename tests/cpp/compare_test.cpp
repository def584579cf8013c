#include "support.h"

#include <bit>
#include <limits>

namespace retape::testing {
namespace {

using retape::Difference;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Difference difference_of(const Tensor& a, const Tensor& b) {
  const auto found = compare(a, b);
  EXPECT_TRUE(found.has_value());
  return found.value_or(Difference());
}

uint64_t ulps(float a, float b, torch::Dtype dtype = torch::kFloat32) {
  return difference_of(torch::tensor({a}).to(dtype), torch::tensor({b}).to(dtype)).ulps;
}

Tensor bits(uint32_t word) {
  return torch::tensor({static_cast<int32_t>(word)}, torch::kInt32).view(torch::kFloat32);
}

TEST(Compare, SameBitsAreTheSame) {
  const auto x = leaf({3, 4});
  EXPECT_FALSE(compare(x, x.clone()).has_value());
  EXPECT_FALSE(compare(torch::empty({0, 3}), torch::empty({0, 3})).has_value());
}

TEST(Compare, CountsElementsAndNamesTheFirst) {
  const auto a = torch::zeros({2, 3, 4});
  auto b = a.clone();
  b[0][2][1] = 1.5;
  b[1][0][3] = -2;
  const auto found = difference_of(a, b);
  EXPECT_EQ(found.differing, 2u);
  EXPECT_EQ(found.elements, 24u);
  EXPECT_EQ(found.first, "[0, 2, 1]");
  EXPECT_EQ(found.plain, "0");
  EXPECT_EQ(found.recomputed, "1.5");
}

TEST(Compare, NestedTensorsAndOtherDevicesAreNamed) {
  const auto dense = torch::ones({2});
  const auto nested = at::_nested_tensor_from_tensor_list({torch::ones({2}), torch::ones({3})});
  EXPECT_EQ(difference_of(nested, dense).plain, "float32 nested");
  EXPECT_EQ(difference_of(dense, dense.to(torch::kMeta)).recomputed, "float32 [2] on meta");
}

TEST(Compare, TheIndexOfANumberIsEmpty) {
  EXPECT_EQ(difference_of(torch::tensor(1.0f), torch::tensor(2.0f)).first, "[]");
}

TEST(Compare, NaNIsNaNWhateverItsPayload) {
  EXPECT_FALSE(compare(bits(0x7fc00000), bits(0xffc12345)).has_value());
  EXPECT_FALSE(compare(bits(0x7fc00000), bits(0x7f800001)).has_value()) << "a signalling one";
}

TEST(Compare, NaNIsNoNumber) {
  const auto found = difference_of(torch::tensor({kNaN}), torch::tensor({1.0f}));
  EXPECT_EQ(found.differing, 1u);
  EXPECT_EQ(found.ulps, 0u);
  EXPECT_EQ(found.plain, "nan");
}

TEST(Compare, ZerosOfOtherSignDiffer) {
  const auto found = difference_of(torch::tensor({0.0f}), torch::tensor({-0.0f}));
  EXPECT_EQ(found.differing, 1u);
  EXPECT_EQ(found.ulps, 0u);
  EXPECT_EQ(found.plain, "0");
  EXPECT_EQ(found.recomputed, "-0");
}

TEST(Compare, DistancesAreCountedInUlps) {
  EXPECT_EQ(ulps(1.0f, std::nextafter(1.0f, 2.0f)), 1u);
  EXPECT_EQ(ulps(-1.0f, std::nextafter(-1.0f, 0.0f)), 1u);
  EXPECT_EQ(ulps(1.0f, 2.0f), 1u << 23);
  const auto found = difference_of(
      torch::tensor({1.0, 1.0}, torch::kFloat64),
      torch::tensor({1.0 + 4e-16, 1.0 + 9e-16}, torch::kFloat64));
  EXPECT_EQ(found.ulps, 4u) << "the largest, of float64";
}

TEST(Compare, DistancesGoThroughDenormalsAndZero) {
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(ulps(0.0f, kTiny), 1u);
  EXPECT_EQ(ulps(-kTiny, kTiny), 2u);
  EXPECT_EQ(
      difference_of(torch::tensor({0.0f}), torch::tensor({kTiny})).recomputed, "1.40129846e-45");
}

TEST(Compare, InfinityFollowsTheLargestNumber) {
  EXPECT_EQ(ulps(std::numeric_limits<float>::max(), kInf), 1u);
  EXPECT_EQ(difference_of(torch::tensor({kInf}), torch::tensor({-kInf})).recomputed, "-inf");
}

TEST(Compare, SmallFloatsHaveTheirOwnUlps) {
  EXPECT_EQ(ulps(1.0f, 1.0078125f, torch::kBFloat16), 1u);
  EXPECT_EQ(ulps(1.0f, 1.0009765625f, torch::kFloat16), 1u);
  EXPECT_EQ(ulps(1.0f, 1.125f, torch::kFloat8_e4m3fn), 1u);
  EXPECT_EQ(
      difference_of(
          torch::tensor({1.0f}).to(torch::kBFloat16), torch::tensor({2.0f}).to(torch::kBFloat16))
          .ulps,
      128u);
}

TEST(Compare, ComplexNumbersDifferInEitherPart) {
  const auto number = [](float re, float im) {
    return torch::complex(torch::tensor({re}), torch::tensor({im}));
  };
  const auto found = difference_of(number(1, 2), number(1, std::nextafter(2.0f, 3.0f)));
  EXPECT_EQ(found.ulps, 1u);
  EXPECT_EQ(found.plain, "1+2j");
  EXPECT_TRUE(compare(number(0, 1), number(-0.0f, 1)).has_value());
  EXPECT_FALSE(compare(number(kNaN, 1), number(-kNaN, 1)).has_value());
  EXPECT_FALSE(compare(number(1, 2).conj(), number(1, -2)).has_value())
      << "a view that is not resolved";
}

TEST(Compare, IntegersDifferByTheirDistance) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(),
                    kMost = std::numeric_limits<int64_t>::max();
  const auto found = difference_of(torch::tensor({kLeast}), torch::tensor({kMost}));
  EXPECT_EQ(found.ulps, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(found.plain, "-9223372036854775808");
  EXPECT_EQ(
      difference_of(torch::tensor({3}, torch::kUInt8), torch::tensor({250}, torch::kUInt8)).ulps,
      247u);
  EXPECT_EQ(difference_of(torch::tensor({true}), torch::tensor({false})).recomputed, "false");
}

TEST(Compare, OtherSizesAndDtypesAreDifferences) {
  const auto found = difference_of(torch::ones({2, 3}), torch::ones({3, 2}));
  EXPECT_EQ(found.differing, 6u);
  EXPECT_EQ(found.first, "");
  EXPECT_EQ(found.plain, "float32 [2, 3]");
  EXPECT_EQ(found.recomputed, "float32 [3, 2]");
  EXPECT_EQ(
      difference_of(torch::ones({2}), torch::ones({2}, torch::kFloat64)).recomputed, "float64 [2]");
}

TEST(Compare, NoneIsOnlyNone) {
  EXPECT_FALSE(compare(Tensor(), Tensor()).has_value());
  const auto found = difference_of(Tensor(), torch::zeros({2}));
  EXPECT_EQ(found.plain, "none");
  EXPECT_EQ(found.recomputed, "float32 [2]");
  EXPECT_TRUE(compare(torch::zeros({2}), Tensor()).has_value());
}

TEST(Compare, StridesAreNoDifference) {
  const auto x = leaf({3, 4});
  EXPECT_FALSE(compare(x, x.t().contiguous().t()).has_value());
  EXPECT_FALSE(compare(torch::ones({1}).expand({5}), torch::ones({5})).has_value());
}

TEST(Compare, SparseTensorsAreComparedAsDenseOnes) {
  const auto dense = torch::eye(3);
  EXPECT_FALSE(compare(dense.to_sparse(), dense.clone().to_sparse()).has_value());
  EXPECT_EQ(difference_of(dense.to_sparse(), (2 * dense).to_sparse()).differing, 3u);
  EXPECT_NE(difference_of(dense, dense.to_sparse()).recomputed.find("Sparse"), std::string::npos);
}

TEST(Compare, ZerosWithoutMemoryAreZeros) {
  const auto zeros = torch::_efficientzerotensor({2, 3}, torch::kFloat32);
  ASSERT_TRUE(zeros._is_zerotensor());
  EXPECT_FALSE(compare(zeros, torch::zeros({2, 3})).has_value());
  EXPECT_EQ(difference_of(zeros, torch::ones({2, 3})).differing, 6u);
}

TEST(Compare, WhatHasNoBytesIsRefused) {
  const auto meta = torch::ones({2}, torch::TensorOptions().device(torch::kMeta));
  EXPECT_THROW(compare(meta, meta), UsageError);
}

TEST(Compare, LargeTensorsInOneGo) {
  const auto a = torch::zeros({1 << 22});
  auto b = a.clone();
  b[(1 << 22) - 1] = 1;
  const auto found = difference_of(a, b);
  EXPECT_EQ(found.differing, 1u);
  EXPECT_EQ(found.first, "[4194303]");
}

TEST(Compare, ATolerancePassesWhatIsWithinIt) {
  const std::map<c10::ScalarType, Tolerance> tolerance{{torch::kFloat32, {1e-3, 1e-6}}};
  EXPECT_FALSE(compare(torch::tensor({100.0f}), torch::tensor({100.05f}), tolerance).has_value());
  EXPECT_TRUE(compare(torch::tensor({100.0f}), torch::tensor({100.2f}), tolerance).has_value());
  EXPECT_FALSE(compare(torch::tensor({0.0f}), torch::tensor({-0.0f}), tolerance).has_value());
  EXPECT_FALSE(
      compare(torch::tensor({kNaN, kInf}), torch::tensor({-kNaN, kInf}), tolerance).has_value());
  EXPECT_TRUE(compare(torch::tensor({kInf}), torch::tensor({-kInf}), tolerance).has_value());
  EXPECT_TRUE(compare(torch::tensor({kInf}), torch::tensor({1.0f}), tolerance).has_value());
  EXPECT_TRUE(compare(
                  torch::ones({1}, torch::kFloat64),
                  torch::full({1}, 1.0 + 1e-15, torch::kFloat64),
                  tolerance)
                  .has_value())
      << "another dtype is compared bit for bit";
}

}  // namespace
}  // namespace retape::testing
