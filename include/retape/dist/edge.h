// Edge: values that go from one pool to another by rows, and gradients that come back.
//
//   Edge edge("lower", topology, "ci", "block0", group);
//
//   // on ranks of ci                               // on ranks of block0
//   edge.send("site3", lower);                      auto leaf = edge.receive("site3", like);
//                                                   ... backward ...
//   auto grad = edge.receive_gradient("site3", lower);  edge.send_gradient("site3", leaf.grad(),
//   leaf);
//
// Each pool has cut the batch in its own way. A rank receives its rows from whoever has them; the
// gradient of a row goes back to its owner, where the gradients of all receivers are added. Add the
// gradients of several edges before backward goes on from the owner: a backward that is not linear
// in its gradient (a clamp that looks at the sign) gives something else for each part alone.
//
// Both sides make the same calls in the same order: each is one exchange among both pools. Each of
// them compares the topology too: where a rank has another one, all raise CollectiveError before
// rows move.
#pragma once

#include <retape/dist/group.h>
#include <retape/dist/topology.h>

#include <memory>
#include <optional>
#include <string>

namespace retape::dist {

struct EdgeOptions {
  std::optional<at::ScalarType> wire;  // dtype on the way; none: the tensor's own
};

class RETAPE_API Edge {
 public:
  // `both`: a group of the ranks of both pools, in any order.
  Edge(
      std::string name,
      const Topology& topology,
      const std::string& from,
      const std::string& to,
      Group both,
      EdgeOptions options = {});

  // Owner: [own rows, ...].
  void send(const std::string& name, const at::Tensor& rows) const;
  // Receiver: [own rows, ...], a leaf that requires a gradient if it is floating point. `like`:
  // dtype, device and sizes but the first.
  at::Tensor receive(const std::string& name, const at::Tensor& like) const;

  // Receiver; undefined counts as zeros.
  void send_gradient(
      const std::string& name, const at::Tensor& gradient, const at::Tensor& like) const;
  // Owner: the sum of what receivers sent for each row, in order of their index.
  at::Tensor receive_gradient(const std::string& name, const at::Tensor& like) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace retape::dist
