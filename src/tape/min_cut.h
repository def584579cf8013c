// The exact minimum cut of a directed graph with capacities (Boost.Graph, Boykov-Kolmogorov).
#pragma once

#include <cstdint>
#include <vector>

namespace retape::detail {

class CutGraph {
 public:
  static constexpr int64_t kInfinite = INT64_MAX / 4;
  static constexpr int kSource = 0;
  static constexpr int kSink = 1;

  int add_node() { return nodes_++; }
  void add_edge(int from, int to, int64_t capacity);

  // For every node: true if it is on the sink's side.
  std::vector<bool> sink_side() const;

 private:
  struct Edge {
    int from;
    int to;
    int64_t capacity;
  };
  int nodes_ = 2;
  std::vector<Edge> edges_;
};

}  // namespace retape::detail
