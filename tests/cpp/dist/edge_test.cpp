#include "ranks.h"

namespace retape::dist {
namespace {

using testing::expect_ranks;
using testing::same_bits;

// Rows r, r + 1, ... of a tensor whose row r is [r, 10 r].
at::Tensor rows_of(RowRange range) {
  const auto first = torch::arange(range.begin, range.end, torch::kFloat);
  return torch::stack({first, first * 10}, 1);
}

// Pools of any sizes, in both directions: values arrive, and gradients are added at the owner.
void there_and_back(const Topology& topology, EdgeOptions options = {}) {
  expect_ranks(topology.world_size(), [&](World& world) {
    const Edge edge("values", topology, "a", "b", world.all(), options);
    const auto& a = topology.pool("a");
    const auto& b = topology.pool("b");
    if (const int i = a.index_of(world.rank()); i >= 0) {
      const auto own = rows_of(a.shards[i]);
      edge.send("x", own);
      const auto grad = edge.receive_gradient("x", own);
      RANK_EXPECT(same_bits(grad, own * 2));
    } else {
      const auto shard = b.shards[b.index_of(world.rank())];
      const auto leaf = edge.receive("x", torch::empty({1, 2}));
      RANK_EXPECT(leaf.is_leaf() && leaf.requires_grad());
      RANK_EXPECT(same_bits(leaf.detach(), rows_of(shard)));
      leaf.square().sum().backward();
      edge.send_gradient("x", leaf.grad(), leaf);
    }
  });
}

TEST(Edge, FromFewToMany) {
  there_and_back(Topology(8, {{"a", {0, 1}}, {"b", {2, 3, 4, 5}}}));
}

TEST(Edge, FromManyToFew) {
  there_and_back(Topology(12, {{"a", {0, 1, 2, 3}}, {"b", {4, 5}}}));
}

TEST(Edge, SizesThatDoNotDivideEachOther) {
  there_and_back(Topology(13, {{"a", {0, 1, 2}}, {"b", {3, 4}, {{0, 9}, {9, 13}}}}));
}

TEST(Edge, ANarrowerWireForWhatItCanHold) {
  EdgeOptions options;
  options.wire = torch::kBFloat16;  // integers up to 256 are exact
  there_and_back(Topology(8, {{"a", {0, 1}}, {"b", {2}}}), options);
}

TEST(Edge, GradientsOfSeveralEdgesAreAddedBeforeABackwardThatIsNotLinear) {
  // Owner 0; receivers 1 and 2 in pools of their own, whose gradients cancel.
  const Topology topology(2, {{"a", {0}}, {"b", {1}}, {"c", {2}}});
  expect_ranks(3, [&](World& world) {
    const auto all = world.all();
    const bool owner = world.rank() == 0;
    // relu of the gradient: g -> max(g, 0) is 0 for the sum, and not for the sum of both parts.
    if (owner) {
      const auto x = torch::ones({2, 1});
      Edge to_b("b", topology, "a", "b", world.group("ab", {0, 1}));
      Edge to_c("c", topology, "a", "c", world.group("ac", {0, 2}));
      to_b.send("x", x);
      to_c.send("x", x);
      const auto sum = to_b.receive_gradient("x", x) + to_c.receive_gradient("x", x);
      RANK_EXPECT(same_bits(sum.relu(), torch::zeros({2, 1})));
    } else {
      const std::string pool = world.rank() == 1 ? "b" : "c";
      Edge edge(pool, topology, "a", pool, world.group("a" + pool, {0, world.rank()}));
      const auto leaf = edge.receive("x", torch::empty({1, 1}));
      (leaf.sum() * (world.rank() == 1 ? 3 : -3)).backward();
      edge.send_gradient("x", leaf.grad(), leaf);
    }
    all.barrier("end");
  });
}

TEST(Edge, NoGradientCountsAsZeros) {
  const Topology topology(2, {{"a", {0}}, {"b", {1}}});
  expect_ranks(2, [&](World& world) {
    const Edge edge("e", topology, "a", "b", world.all());
    if (world.rank() == 0) {
      const auto x = torch::ones({2, 1});
      edge.send("x", x);
      RANK_EXPECT(same_bits(edge.receive_gradient("x", x), torch::zeros({2, 1})));
    } else {
      const auto leaf = edge.receive("x", torch::empty({1, 1}));
      edge.send_gradient("x", leaf.grad(), leaf);
    }
  });
}

TEST(Edge, IntegersTravelAsTheyAre) {
  const Topology topology(2, {{"a", {0}}, {"b", {1}}});
  expect_ranks(2, [&](World& world) {
    EdgeOptions options;
    options.wire = torch::kBFloat16;
    const Edge edge("e", topology, "a", "b", world.all(), options);
    const auto tokens = torch::full({2}, int64_t{123456789}, torch::kLong);
    if (world.rank() == 0) {
      edge.send("tokens", tokens);
    } else {
      const auto got = edge.receive("tokens", torch::empty({1}, torch::kLong));
      RANK_EXPECT(same_bits(got, tokens) && !got.requires_grad());
    }
  });
}

TEST(Edge, AnotherWidthOfARowIsNoticedByBothSides) {
  const Topology topology(2, {{"a", {0}}, {"b", {1}}});
  expect_ranks(2, [&](World& world) {
    const Edge edge("e", topology, "a", "b", world.all());
    const auto text = testing::error_of([&] {
      if (world.rank() == 0) {
        edge.send("x", torch::ones({2, 3}));
      } else {
        edge.receive("x", torch::empty({1, 4}));
      }
    });
    RANK_EXPECT_TEXT(text, "Float[rows,3]", "Float[rows,4]", "edge \"e\", a to b");
  });
}

TEST(Edge, AnotherTopologyIsNoticedByBothSides) {
  for (const bool back : {false, true}) {
    expect_ranks(3, [&](World& world) {
      // The pools of the edge are alike: rank 2 has more rows, or another pool elsewhere.
      const int more = world.rank() == 2 && !back ? 1 : 0;
      const std::vector<int> others{world.rank() == 2 && back ? 4 : 3};
      const Topology topology(6 + more, {{"a", {0, 1}}, {"b", {2}}, {"others", others}});
      const Edge edge("e", topology, "a", "b", world.all());
      const auto rows = torch::ones(
          {topology.pool(world.rank() < 2 ? "a" : "b").shards.at(world.rank() % 2).size(), 3});
      try {
        if (back) {
          world.rank() < 2 ? static_cast<void>(edge.receive_gradient("x", rows))
                           : edge.send_gradient("x", rows, rows);
        } else {
          world.rank() < 2 ? edge.send("x", rows) : static_cast<void>(edge.receive("x", rows));
        }
      } catch (const CollectiveError& error) {
        RANK_EXPECT(error.ranks() == std::vector<int>{2});
        RANK_EXPECT_TEXT(
            error.what(), back ? "others: 4[0,6)" : "7 rows", back ? "others: 3[0,6)" : "6 rows");
        return;
      }
      RANK_EXPECT(!"raised");
    });
  }
}

TEST(Edge, RefusesTheWrongSideAndTheWrongRows) {
  const Topology topology(4, {{"a", {0}}, {"b", {1}}});
  const auto refused = [](const std::function<void()>& call) { EXPECT_THROW(call(), UsageError); };
  refused([&] { Edge("e", topology, "a", "b", Group::alone("alone")); });  // without rank 1
  const Topology common(4, {{"a", {0}}, {"b", {0}}});
  refused([&] { Edge("e", common, "a", "b", Group::alone("alone")); });
  refused([&] {
    Edge("e", topology, "a", "b", Group::alone("alone"), {torch::kInt});
  });                                  // would cut off what is behind the point
  expect_ranks(3, [&](World& world) {  // rank 2 is in neither
    int refusals = 0;
    try {
      Edge("e", topology, "a", "b", world.all());
    } catch (const UsageError& error) {
      RANK_EXPECT_TEXT(error.what(), "rank 2 of group \"world\" is in neither \"a\" nor \"b\"");
      ++refusals;
    }
    RANK_EXPECT_EQ(refusals, 1);
  });
  expect_ranks(2, [&](World& world) {
    const Edge edge("e", topology, "a", "b", world.all());
    int refusals = 0;
    for (const int rows : {3, 4}) {
      try {
        world.rank() == 0 ? edge.send_gradient("x", torch::ones({rows, 1}), torch::ones({rows, 1}))
                          : edge.send("x", torch::ones({rows, 1}));
      } catch (const UsageError&) {
        ++refusals;
      }
    }
    RANK_EXPECT_EQ(refusals, 2);
    if (world.rank() == 1) {
      try {
        edge.receive("x", torch::ones({}));  // a row of what?
      } catch (const UsageError& error) {
        RANK_EXPECT_TEXT(error.what(), "`like` has no rows. Fix: a tensor with the sizes of a row");
        ++refusals;
      }
      RANK_EXPECT_EQ(refusals, 3);
    }
    if (world.rank() == 0) {
      try {
        edge.send("x", torch::ones({3, 1}));
      } catch (const UsageError& error) {
        RANK_EXPECT_TEXT(error.what(), "expected 4 rows", "got 3");
        ++refusals;
      }
      RANK_EXPECT_EQ(refusals, 3);
    }
  });
}

}  // namespace
}  // namespace retape::dist
