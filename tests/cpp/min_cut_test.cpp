#include "tape/min_cut.h"

#include <gtest/gtest.h>

#include <random>

namespace retape::detail {
namespace {

TEST(MinCut, TakesTheCheapestEdgeOfAChain) {
  CutGraph graph;
  const int a = graph.add_node();
  const int b = graph.add_node();
  graph.add_edge(CutGraph::kSource, a, 5);
  graph.add_edge(a, b, 2);
  graph.add_edge(b, CutGraph::kSink, 7);
  const auto sink = graph.sink_side();
  EXPECT_FALSE(sink[a]);
  EXPECT_TRUE(sink[b]);
}

// Against every one of the 2^n cuts.
TEST(MinCut, IsTheBestOfAllCutsOnRandomGraphs) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int n = 3 + static_cast<int>(random() % 6);
    CutGraph graph;
    for (int i = 0; i < n; ++i) {
      graph.add_node();
    }
    struct Edge {
      int from, to;
      int64_t capacity;
    };
    std::vector<Edge> edges;
    for (int i = 0; i < 3 * n; ++i) {
      const int from = static_cast<int>(random() % static_cast<unsigned>(n + 2));
      const int to = static_cast<int>(random() % static_cast<unsigned>(n + 2));
      if (from != to && from != CutGraph::kSink && to != CutGraph::kSource) {
        edges.push_back({from, to, static_cast<int64_t>(random() % 20)});
        graph.add_edge(from, to, edges.back().capacity);
      }
    }
    const auto cost = [&](auto on_sink) {
      int64_t total = 0;
      for (const auto& edge : edges) {
        total += !on_sink(edge.from) && on_sink(edge.to) ? edge.capacity : 0;
      }
      return total;
    };
    int64_t best = INT64_MAX;
    for (int mask = 0; mask < (1 << n); ++mask) {
      best = std::min(best, cost([&](int node) {
                        return node == CutGraph::kSink || (node > 1 && ((mask >> (node - 2)) & 1));
                      }));
    }
    const auto side = graph.sink_side();
    EXPECT_EQ(cost([&](int node) { return side[static_cast<size_t>(node)]; }), best);
  }
}

}  // namespace
}  // namespace retape::detail
