// Random numbers that belong to a row, whoever draws them.
#include <retape/dist/row_random.h>
#include <retape/error.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace retape::dist {
namespace {

TEST(RowUniform, DependsOnNothingButSeedNameAndRow) {
  const auto whole = row_uniform(7, "stoch", {0, 12}, {2, 3}, torch::kDouble);
  EXPECT_TRUE(whole.narrow(0, 5, 4).equal(row_uniform(7, "stoch", {5, 9}, {2, 3}, torch::kDouble)));
  EXPECT_FALSE(whole.equal(row_uniform(8, "stoch", {0, 12}, {2, 3}, torch::kDouble)));
  EXPECT_FALSE(whole.equal(row_uniform(7, "ppgd", {0, 12}, {2, 3}, torch::kDouble)));
  EXPECT_FALSE(whole[0].equal(whole[1]));
  EXPECT_TRUE(whole.to(torch::kFloat).equal(row_uniform(7, "stoch", {0, 12}, {2, 3})));
}

TEST(RowUniform, IsUniform) {
  const auto drawn = row_uniform(1, "x", {0, 100}, {1000}, torch::kDouble);
  EXPECT_NEAR(drawn.mean().item<double>(), 0.5, 0.005);
  EXPECT_NEAR(drawn.var().item<double>(), 1.0 / 12, 0.002);
  EXPECT_GE(drawn.min().item<double>(), 0);
  EXPECT_LT(drawn.max().item<double>(), 1);
  EXPECT_EQ(row_uniform(1, "x", {3, 3}, {4}).numel(), 0);
  EXPECT_THROW(row_uniform(1, "x", {3, 2}, {4}), UsageError);
}

TEST(RowGenerator, DrawsTheSameForTheSameRow) {
  const auto draw = [](uint64_t seed, const char* name, int64_t row) {
    return torch::randn({4}, row_generator(seed, name, row));
  };
  EXPECT_TRUE(draw(1, "a", 5).equal(draw(1, "a", 5)));
  EXPECT_FALSE(draw(1, "a", 5).equal(draw(1, "a", 6)));
  EXPECT_FALSE(draw(1, "a", 5).equal(draw(1, "b", 5)));
  EXPECT_FALSE(draw(1, "a", 5).equal(draw(2, "a", 5)));
}

}  // namespace
}  // namespace retape::dist
