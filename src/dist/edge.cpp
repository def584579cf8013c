#include <retape/dist/edge.h>

#include "dist/group_impl.h"
#include "dist/mutated.h"
#include "dist/row_exchange.h"

#include <retape/dist/contribution.h>

#include <ATen/Functions.h>

#include <algorithm>

namespace retape::dist {

namespace {

int index_in(const Group& group, int rank) {
  const auto& ranks = group.ranks();
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace

struct Edge::Impl {
  std::string name;
  std::string topology;  // all of it: where ranks have another, rows are not what others expect
  Pool from;
  Pool to;
  Group both;
  EdgeOptions options;
  int owner;     // this rank's index in `from`, or -1
  int receiver;  // in `to`, or -1

  void check_side(const char* function, int index, const Pool& pool) const {
    if (index < 0) {
      throw UsageError(
          "[" + std::string(function) + "] edge \"" + name + "\": rank " +
          std::to_string(both.rank()) + " is not in pool \"" + pool.name + "\".");
    }
  }

  void check_rows(const char* function, const at::Tensor& rows, const Pool& pool, int index) const {
    const auto expected = pool.shards[index].size();
    if (!rows.defined() || rows.dim() == 0 || rows.size(0) != expected) {
      throw UsageError(
          "[" + std::string(function) + "] edge \"" + name + "\": expected " +
          std::to_string(expected) + " rows, which rank " + std::to_string(both.rank()) +
          " has in pool \"" + pool.name + "\", got " +
          (rows.defined() && rows.dim() > 0 ? std::to_string(rows.size(0)) : "none") + ".");
    }
  }

  // The same on both sides: what a row is, which way it goes, and which rows each rank has.
  std::string what(const at::Tensor& like, bool back) const {
    std::string text = c10::toString(wire_of(like));
    text += "[rows";
    for (int64_t d = 1; d < like.dim(); ++d) {
      text += "," + std::to_string(like.size(d));
    }
    const auto& sender = back ? to : from;
    const auto& taker = back ? from : to;
    return text + "] of edge \"" + name + "\", " + sender.name + " to " + taker.name +
        ", where there are " + topology;
  }

  at::ScalarType wire_of(const at::Tensor& like) const {
    return detail::on_wire(like.scalar_type(), options.wire);
  }

  at::Tensor room(const at::Tensor& like, int64_t rows) const {
    auto sizes = like.sizes().vec();
    sizes.at(0) = rows;
    return at::empty(sizes, like.options().dtype(wire_of(like)).requires_grad(false));
  }

  // Rows that this rank has as member `mine` of `here` and that members of `there` have too.
  struct Part {
    int member;     // of `both`
    RowRange rows;  // within this rank's shard
  };
  std::vector<Part> parts(const Pool& here, int mine, const Pool& there) const {
    std::vector<Part> parts;
    const auto own = here.shards[mine];
    for (int i = 0; i < there.size(); ++i) {
      const auto common = overlap(own, there.shards[i]);
      if (!common.empty()) {
        parts.push_back(
            {index_in(both, there.ranks[i]), {common.begin - own.begin, common.end - own.begin}});
      }
    }
    return parts;
  }

  void send(
      const std::string& tensor_name,
      const at::Tensor& rows,
      const Pool& here,
      int mine,
      const Pool& there,
      bool back) const {
    std::vector<detail::Message> messages;
    for (const auto& part : parts(here, mine, there)) {
      const auto slice = rows.detach().narrow(0, part.rows.begin, part.rows.size());
      messages.push_back({both.index(), part.member, slice.to(wire_of(rows)).contiguous()});
    }
    detail::exchange(both, tensor_name, what(rows, back), rows.device(), messages);
  }

  // One message per member of `there` that has rows of this rank.
  std::vector<std::pair<Part, at::Tensor>> receive(
      const std::string& tensor_name,
      const at::Tensor& like,
      const Pool& here,
      int mine,
      const Pool& there,
      bool back) const {
    std::vector<std::pair<Part, at::Tensor>> arrived;
    std::vector<detail::Message> messages;
    for (const auto& part : parts(here, mine, there)) {
      arrived.emplace_back(part, room(like, part.rows.size()));
      messages.push_back({part.member, both.index(), arrived.back().second});
    }
    detail::exchange(both, tensor_name, what(like, back), like.device(), messages);
    return arrived;
  }
};

Edge::Edge(
    std::string name,
    const Topology& topology,
    const std::string& from,
    const std::string& to,
    Group both,
    EdgeOptions options) {
  detail::check_wire("Edge", options.wire);
  const auto& owners = topology.pool(from);
  const auto& receivers = topology.pool(to);
  for (const auto* pool : {&owners, &receivers}) {
    for (const int rank : pool->ranks) {
      const auto& ranks = both.ranks();
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) {
        throw UsageError(
            "[Edge] \"" + name + "\": rank " + std::to_string(rank) + " of pool \"" + pool->name +
            "\" is not in group \"" + both.name() + "\". Fix: a group of the ranks of both pools.");
      }
      if (pool == &owners && receivers.index_of(rank) >= 0) {
        throw UsageError(
            "[Edge] \"" + name + "\": rank " + std::to_string(rank) +
            " is in both pools. Fix: pools without a "
            "common rank; what a rank has itself needs no edge.");
      }
    }
  }
  // One that is in neither pool would be waited for in every call.
  for (const int rank : both.ranks()) {
    if (owners.index_of(rank) < 0 && receivers.index_of(rank) < 0) {
      throw UsageError(
          "[Edge] \"" + name + "\": rank " + std::to_string(rank) + " of group \"" + both.name() +
          "\" is in neither \"" + from + "\" nor \"" + to +
          "\". Fix: a group of the ranks of both pools.");
    }
  }
  const int owner = owners.index_of(both.rank());
  const int receiver = receivers.index_of(both.rank());
  impl_ = std::make_shared<const Impl>(Impl{
      std::move(name),
      topology.text(),
      owners,
      receivers,
      std::move(both),
      options,
      owner,
      receiver});
}

void Edge::send(const std::string& name, const at::Tensor& rows) const {
  impl_->check_side("Edge::send", impl_->owner, impl_->from);
  impl_->check_rows("Edge::send", rows, impl_->from, impl_->owner);
  impl_->send(name, rows, impl_->from, impl_->owner, impl_->to, false);
}

at::Tensor Edge::receive(const std::string& name, const at::Tensor& like) const {
  impl_->check_side("Edge::receive", impl_->receiver, impl_->to);
  if (!like.defined() || like.dim() == 0) {
    throw UsageError(
        "[Edge::receive] edge \"" + impl_->name +
        "\": `like` has no rows. Fix: a tensor with the sizes of a row behind "
        "its first, as torch.empty(1, 5) for rows of 5.");
  }
  const auto own = impl_->to.shards[impl_->receiver];
  auto sizes = like.sizes().vec();
  sizes.at(0) = own.size();
  auto leaf = at::empty(sizes, like.options().requires_grad(false));
  for (const auto& [part, rows] :
       impl_->receive(name, like, impl_->to, impl_->receiver, impl_->from, false)) {
    leaf.narrow(0, part.rows.begin, part.rows.size()).copy_(rows);
  }
  if (leaf.is_floating_point() || leaf.is_complex()) {
    leaf.requires_grad_();
  }
  return leaf;
}

void Edge::send_gradient(
    const std::string& name, const at::Tensor& gradient, const at::Tensor& like) const {
  impl_->check_side("Edge::send_gradient", impl_->receiver, impl_->to);
  auto rows = gradient.defined() ? gradient.detach() : at::zeros_like(like).detach();
  impl_->check_rows("Edge::send_gradient", rows, impl_->to, impl_->receiver);
  const auto change = detail::pass(
      Place::Gradient, impl_->name + "/" + name, impl_->from.name, impl_->from.size());
  rows = detail::mutated(rows, change, impl_->from.size());
  impl_->send(name, rows, impl_->to, impl_->receiver, impl_->from, true);
}

at::Tensor Edge::receive_gradient(const std::string& name, const at::Tensor& like) const {
  impl_->check_side("Edge::receive_gradient", impl_->owner, impl_->from);
  impl_->check_rows("Edge::receive_gradient", like, impl_->from, impl_->owner);
  const auto sum = at::zeros_like(like.detach(), like.options().requires_grad(false));
  for (const auto& [part, rows] :
       impl_->receive(name, like, impl_->from, impl_->owner, impl_->to, true)) {
    sum.narrow(0, part.rows.begin, part.rows.size()).add_(rows.to(sum.scalar_type()));
  }
  return sum;
}

}  // namespace retape::dist
