#include "ranks.h"

namespace retape::dist {
namespace {

using testing::expect_ranks;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Topology, ShardsDifferByAtMostOneRow) {
  EXPECT_EQ(even_shards(10, 4), (std::vector<RowRange>{{0, 3}, {3, 6}, {6, 8}, {8, 10}}));
}

TEST(Topology, OverlapOfAnyTwoShards) {
  const Topology topology(
      12, {{"fine", {0, 1, 2, 3}}, {"coarse", {4, 5, 6}}, {"ragged", {7, 8}, {{0, 5}, {5, 12}}}});
  EXPECT_EQ(topology.overlap("fine", 1, "coarse", 0), (RowRange{3, 4}));
  EXPECT_EQ(topology.overlap("fine", 1, "coarse", 1), (RowRange{4, 6}));
  EXPECT_EQ(topology.overlap("fine", 1, "ragged", 1), (RowRange{5, 6}));
  EXPECT_TRUE(topology.overlap("fine", 0, "coarse", 2).empty());
  EXPECT_EQ(topology.overlap("fine", 0, "coarse", 2).size(), 0);
}

TEST(Topology, OverlapsOfAPoolWithAnotherAreAllOfItsRows) {
  for (int a = 1; a <= 7; ++a) {
    for (int b = 1; b <= 7; ++b) {
      std::vector<int> left(a), right(b);
      std::iota(left.begin(), left.end(), 0);
      std::iota(right.begin(), right.end(), a);
      const Topology topology(7 + a * b, {{"a", left}, {"b", right}});
      for (int i = 0; i < a; ++i) {
        int64_t rows = 0;
        for (int j = 0; j < b; ++j) {
          rows += topology.overlap("a", i, "b", j).size();
        }
        EXPECT_EQ(rows, topology.pool("a").shards[i].size());
      }
    }
  }
}

void expect_refused(const std::function<void()>& make, const std::string& why) {
  EXPECT_THAT(make, ThrowsMessage<UsageError>(HasSubstr(why)));
}

TEST(Topology, RefusesWhatIsNoCutOfTheBatch) {
  expect_refused([] { Topology(4, {{"a", {0, 1}, {{0, 2}, {3, 4}}}}); }, "row 2 is in no shard");
  expect_refused([] { Topology(4, {{"a", {0, 1}, {{0, 3}, {2, 4}}}}); }, "row 2 is in two shards");
  expect_refused(
      [] { Topology(4, {{"a", {0, 1}, {{0, 2}, {2, 3}}}}); }, "shards end at row 3 of 4");
  expect_refused([] { Topology(4, {{"a", {0, 1}, {{0, 4}}}}); }, "1 shards for 2 ranks");
  expect_refused(
      [] { Topology(4, {{"a", {0, 1}, {{0, 4}, {4, 3}}}}); },
      "a shard ends at row 3, before it begins");
  expect_refused([] { Topology(0, {{"a", {0}}}); }, "0 rows. Fix: at least one");
  expect_refused([] { Topology(1, {{"a", {0, 1}}}); }, "1 rows cannot be cut into 2 shards");
}

TEST(Topology, RefusesRanksAndNamesThatAreThereTwice) {
  expect_refused([] { Topology(4, {{"a", {0, 0}}}); }, "rank 0 is there twice");
  expect_refused([] { Topology(4, {{"a", {0}}, {"a", {1}}}); }, "two of this name");
  expect_refused([] { Topology(4, {{"a", {}}}); }, "no ranks");
  expect_refused([] { Topology(4, {{"a", {-1}}}); }, "below zero");
  expect_refused([] { Topology(4, {}); }, "no pools");
}

TEST(Topology, AnUnknownPoolIsToldWhichThereAre) {
  const Topology topology(4, {{"ci", {0}}, {"ppgd", {1}}});
  expect_refused([&] { topology.pool("cl"); }, "There is: \"ci\", \"ppgd\"");
}

TEST(Topology, GroupsAreOfRanksThatAreInPools) {
  const Topology topology(4, {{"a", {0, 1}}, {"b", {2}}}, {{"ends", {2, 0}}});
  EXPECT_EQ(topology.ranks_of("ends"), (std::vector<int>{2, 0}));
  EXPECT_EQ(topology.ranks_of("a"), (std::vector<int>{0, 1}));
  EXPECT_THAT(topology.text(), HasSubstr("ends: 2 0"));
  expect_refused([] { Topology(4, {{"a", {0}}}, {{"a", {0}}}); }, "two of this name");
  expect_refused(
      [] { Topology(4, {{"a", {0}}}, {{"g", {0, 1}}}); }, "group \"g\": rank 1 is in no pool");
  expect_refused(
      [] { Topology(4, {{"a", {0}}}, {{"g", {0, 0}}}); }, "group \"g\": rank 0 is there twice");
}

TEST(Placement, SaysWhereThisRankIsAndHasItsGroups) {
  expect_ranks(3, [](World& world) {
    const Topology topology(7, {{"a", {0, 1}}, {"b", {2}}}, {{"ends", {2, 0}}});
    const Placement placement(world, topology);
    const auto total = torch::full({1}, world.rank() + 1.0);
    if (world.rank() == 1) {
      RANK_EXPECT(!placement.has("ends") && placement.has("a"));
      RANK_EXPECT(placement.rows("a") == (RowRange{4, 7}));
      RANK_EXPECT(!placement.leads("a"));
      placement.group("a").sum("of a", total);
      RANK_EXPECT_EQ(total.item<double>(), 3.0);
      return;
    }
    placement.group("ends").sum("of ends", total);
    RANK_EXPECT_EQ(total.item<double>(), 4.0);
    RANK_EXPECT_EQ(placement.group("ends").index(), world.rank() == 2 ? 0 : 1);
    if (world.rank() == 0) {
      RANK_EXPECT(placement.leads("a"));
      placement.group("a").sum("of a", torch::ones({1}));
    } else {
      expect_refused([&] { placement.rows("a"); }, "rank 2 is not in pool \"a\"");
      RANK_EXPECT(!::testing::Test::HasFailure());
    }
  });
}

TEST(Placement, ATopologyThatDiffersOnARankIsNoticedByAll) {
  expect_ranks(3, [](World& world) {
    const auto text = testing::error_of([&] {
      Placement(world, Topology(6, {{"a", {0, 1, 2}}}, {{"g", {0, world.rank() == 1 ? 2 : 1}}}));
    });
    RANK_EXPECT_TEXT(text, "rank 1 would", "g: 0 2", "g: 0 1");
  });
}

TEST(Topology, OneThatDiffersOnARankIsNoticedByAll) {
  expect_ranks(3, [](World& world) {
    const Topology topology(6, {{"a", {0, 1}}, {"b", {2}, {{0, 6}}}});
    world.all().agree(topology);
    const Topology other(world.rank() == 1 ? 7 : 6, {{"a", {0, 1}}});
    RANK_EXPECT_TEXT(
        testing::error_of([&] { world.all().agree(other); }), "rank 1 would", "7 rows", "6 rows");
  });
}

}  // namespace
}  // namespace retape::dist
