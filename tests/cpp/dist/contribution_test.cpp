// Each mutation does what its name says: what GradCheck's self-test relies on.
#include "ranks.h"

namespace retape::dist {
namespace {

using testing::expect_ranks;

// The gradient of a loss in which everything passes through contributions, on two ranks of unlike
// counts.
double gradient(const Group& group) {
  const auto w = torch::ones({1}, torch::TensorOptions(torch::kDouble).requires_grad(true));
  const auto count = count_global("rows", group.index() + 1, group);
  auto sum = global_residual("usage", w * (group.index() + 1.0), group);
  normalize(sum.sum(), count).value().backward();
  SumReducer reducer(group);
  const auto penalty = contribute_once(
      "penalty", Replicated(torch::full({1}, 10.0, torch::kDouble)), group);
  w.mutable_grad() = w.grad() + penalty.value();
  reducer.add_gradients({{"w", w}});
  reducer.reduce();
  return w.grad().item<double>();
}

TEST(Contribution, AWatchListsThemInOrder) {
  expect_ranks(2, [](World& world) {
    const Watch watch;
    gradient(world.all());
    std::string text;
    for (const auto& seen : watch.seen()) {
      text += std::string(dist::text(seen.place)) + " " + seen.name + " of " +
          std::to_string(seen.size) + "; ";
    }
    RANK_EXPECT_EQ(text, "count rows of 2; residual usage of 2; once penalty of 2; sum w of 2; ");
  });
}

TEST(Contribution, MutationsDoWhatTheyAreCalled) {
  // Clean: (1 + 2) / 3 rows, and the penalty once: 11.
  const std::vector<std::tuple<Place, std::string, Mutation, double>> expected{
      {Place::Sum, "w", Mutation::Drop, 0},
      {Place::Sum, "w", Mutation::Double, 22},
      {Place::Sum, "w", Mutation::Average, 5.5},
      {Place::Sum, "w", Mutation::TimesGroup, 22},
      {Place::Once, "penalty", Mutation::Drop, 1},
      {Place::Once, "penalty", Mutation::Double, 21},
      {Place::Once, "penalty", Mutation::OnAllRanks, 21},
      {Place::Count, "rows", Mutation::Drop, 11.5},        // 3/2
      {Place::Count, "rows", Mutation::Double, 10.5},      // 3/6
      {Place::Count, "rows", Mutation::LocalCount, 12},    // 1/1 + 2/2
      {Place::Count, "rows", Mutation::TimesGroup, 10.5},  // 3/6
      {Place::Residual, "usage", Mutation::Drop, 10},
      {Place::Residual, "usage", Mutation::Double, 12},
      {Place::Residual, "usage", Mutation::TimesGroup, 12},
      {Place::Residual, "usage", Mutation::LocalValue, 11},  // linear: the value does not matter
  };
  expect_ranks(2, [&](World& world) {
    RANK_EXPECT_EQ(gradient(world.all()), 11.0);
    for (const auto& [place, name, mutation, value] : expected) {
      const Watch watch({place, name, "world", 2}, mutation);
      RANK_EXPECT_EQ(gradient(world.all()), value);
      RANK_EXPECT(watch.hit());
    }
    const Watch other({Place::Count, "rows", "world", 2}, Mutation::OtherCount, 3);
    RANK_EXPECT_EQ(gradient(world.all()), 10 + 1.0 / 3 + 2.0 / 6);
  });
}

TEST(Contribution, ATensorThatIsSummedAloneIsOne) {
  expect_ranks(2, [](World& world) {
    const auto sum = [&] {
      const auto tensor = torch::full({1}, 3.0);
      sum_async("bucket", Partial(tensor), world.all(), "w, b").wait();
      return tensor.item<double>();
    };
    const auto mutated = [&](Mutation mutation) {
      const Watch watch({Place::Sum, "bucket", "world", 2}, mutation);
      const auto found = sum();
      RANK_EXPECT(watch.hit());
      return found;
    };
    RANK_EXPECT_EQ(sum(), 6.0);
    RANK_EXPECT_EQ(mutated(Mutation::Drop), 0.0);
    RANK_EXPECT_EQ(mutated(Mutation::Double), 12.0);
    RANK_EXPECT_EQ(mutated(Mutation::Average), 3.0);
    RANK_EXPECT_EQ(mutated(Mutation::TimesGroup), 12.0);
  });
}

TEST(Contribution, ASumOfAGroupIsOne) {
  expect_ranks(2, [](World& world) {
    const auto tensor = torch::full({1}, 3.0);
    const Watch watch({Place::Sum, "w", "world", 2}, Mutation::Average);
    world.all().sum("w", tensor);
    RANK_EXPECT_EQ(tensor.item<double>(), 3.0);
    RANK_EXPECT(watch.hit());
    RANK_EXPECT_EQ(watch.seen().size(), size_t{1});
  });
}

// What one rank has, or one computes, in a sum of two; rank 1 is the owner.
TEST(Contribution, WhatOneRankHasOrComputesIsContributedByIt) {
  expect_ranks(2, [](World& world) {
    const auto& group = world.all();
    int computed = 0;
    const auto sums = [&] {
      const auto own = torch::full(
          {1}, group.index() == 1 ? 7.0 : std::nan(""));  // others' numbers do not count
      const auto from = contribute_from("from", own, group, 1).value();
      const auto once = contribute_once(
                            "once",
                            own,
                            [&] {
                              return ++computed, Replicated<at::Tensor>(torch::full({1}, 5.0));
                            },
                            group,
                            1)
                            .value();
      const auto both = torch::cat({from, once});
      SumReducer reducer(group);
      reducer.add("both", Partial(both));
      reducer.reduce();
      return std::pair(both[0].item<double>(), both[1].item<double>());
    };
    const auto broken = [&](const char* name, Mutation mutation) {
      const Watch watch({Place::Once, name, "world", 2}, mutation);
      const auto found = sums();
      RANK_EXPECT(watch.hit());
      return found;
    };
    RANK_EXPECT(sums() == std::pair(7.0, 5.0));
    RANK_EXPECT_EQ(computed, group.index());
    RANK_EXPECT(broken("from", Mutation::OnAllRanks) == std::pair(14.0, 5.0));
    RANK_EXPECT(broken("from", Mutation::Double) == std::pair(14.0, 5.0));
    RANK_EXPECT(broken("from", Mutation::Drop) == std::pair(0.0, 5.0));
    RANK_EXPECT(broken("once", Mutation::OnAllRanks) == std::pair(7.0, 10.0));
    RANK_EXPECT(broken("once", Mutation::Double) == std::pair(7.0, 10.0));
    RANK_EXPECT(broken("once", Mutation::Drop) == std::pair(7.0, 0.0));
  });
}

TEST(Contribution, SeveralAreBrokenAtOnceAndAStarIsEveryName) {
  expect_ranks(2, [](World& world) {
    {
      const Watch watch(
          {{{Place::Sum, "*", "world", 2}, Mutation::Average},
           {{Place::Count, "rows", "world", 2}, Mutation::Double}});
      RANK_EXPECT_EQ(gradient(world.all()), 10.5 / 2);
      RANK_EXPECT(watch.hit());
    }
    const Watch elsewhere({{{Place::Sum, "*", "another group", 2}, Mutation::Average}});
    RANK_EXPECT_EQ(gradient(world.all()), 11.0);
    RANK_EXPECT(!elsewhere.hit());
  });
}

TEST(Contribution, PredictedRatios) {
  const Contribution sum{Place::Sum, "w", "g", 4};
  Contribution count{Place::Count, "n", "g", 4};
  EXPECT_EQ(predicted_ratio(Mutation::Drop, sum), 0.0);
  EXPECT_EQ(predicted_ratio(Mutation::Double, sum), 2.0);
  EXPECT_EQ(predicted_ratio(Mutation::Drop, count), 4.0 / 3);
  EXPECT_EQ(predicted_ratio(Mutation::Double, count), 0.5);
  EXPECT_EQ(predicted_ratio(Mutation::Average, sum), 0.25);
  EXPECT_EQ(predicted_ratio(Mutation::TimesGroup, sum), 4.0);
  EXPECT_EQ(predicted_ratio(Mutation::TimesGroup, count), 0.25);
  EXPECT_EQ(predicted_ratio(Mutation::LocalCount, count), 4.0);
  EXPECT_EQ(predicted_ratio(Mutation::OtherCount, count, 2), 2.0);
  EXPECT_EQ(predicted_ratio(Mutation::LocalValue, count), std::nullopt);
  count.even = false;  // ranks count differently: a local count is no factor
  EXPECT_EQ(predicted_ratio(Mutation::LocalCount, count), std::nullopt);
  EXPECT_EQ(predicted_ratio(Mutation::OtherCount, count, 2), std::nullopt);
  EXPECT_EQ(predicted_ratio(Mutation::Drop, count), std::nullopt);
  EXPECT_EQ(predicted_ratio(Mutation::TimesGroup, count), 0.25);
}

TEST(Contribution, OneWatchAtATime) {
  const Watch first;
  EXPECT_THROW(Watch(), UsageError);
}

}  // namespace
}  // namespace retape::dist
