#include "tape/min_cut.h"

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/boykov_kolmogorov_max_flow.hpp>

namespace retape::detail {

namespace {

using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
using Graph = boost::adjacency_list<
    boost::vecS,
    boost::vecS,
    boost::directedS,
    boost::property<
        boost::vertex_index_t,
        long,
        boost::property<
            boost::vertex_color_t,
            boost::default_color_type,
            boost::property<
                boost::vertex_distance_t,
                long,
                boost::property<boost::vertex_predecessor_t, Traits::edge_descriptor>>>>,
    boost::property<
        boost::edge_capacity_t,
        int64_t,
        boost::property<
            boost::edge_residual_capacity_t,
            int64_t,
            boost::property<boost::edge_reverse_t, Traits::edge_descriptor>>>>;

}  // namespace

void CutGraph::add_edge(int from, int to, int64_t capacity) {
  edges_.push_back({from, to, capacity});
}

std::vector<bool> CutGraph::sink_side() const {
  Graph graph(static_cast<size_t>(nodes_));
  auto capacity = boost::get(boost::edge_capacity, graph);
  auto reverse = boost::get(boost::edge_reverse, graph);
  for (const auto& edge : edges_) {
    const auto there = boost::add_edge(edge.from, edge.to, graph).first;
    const auto back = boost::add_edge(edge.to, edge.from, graph).first;
    capacity[there] = edge.capacity;
    capacity[back] = 0;
    reverse[there] = back;
    reverse[back] = there;
  }
  boost::boykov_kolmogorov_max_flow(
      graph, boost::vertex(kSource, graph), boost::vertex(kSink, graph));
  // Black: still reachable from the source. What is grey or white is cut off from it.
  const auto color = boost::get(boost::vertex_color, graph);
  std::vector<bool> side(static_cast<size_t>(nodes_));
  for (int node = 0; node < nodes_; ++node) {
    side[static_cast<size_t>(node)] = color[boost::vertex(node, graph)] !=
        boost::color_traits<boost::default_color_type>::black();
  }
  return side;
}

}  // namespace retape::detail
