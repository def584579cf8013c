// Placement: where a topology puts this rank, and the groups that it is in there.
//
//   const Placement placement({rank, make_group}, topology);   // on every rank of the topology
//   placement.group("ci").sum("usage", usage);        // a pool's ranks, or a group's
//   placement.rows("ci");                             // this rank's rows of the batch
#pragma once

#include <retape/dist/group.h>
#include <retape/dist/topology.h>

#include <functional>
#include <string>
#include <vector>

namespace retape::dist {

// What makes the groups of a program. `make` is called by members only, and gives the same group
// when it is called again with the same name and ranks.
struct GroupFactory {
  int rank;  // this process's
  std::function<Group(const std::string& name, const std::vector<int>& ranks)> make;
};

class RETAPE_API Placement {
 public:
  // CollectiveError on all ranks of the topology: one has another, or has not come within the
  // timeout.
  Placement(GroupFactory groups, Topology topology);

  const Topology& topology() const { return topology_; }
  bool has(const std::string& name) const;  // this rank is in that pool or group

  // In a pool of this rank; UsageError: it is not in it.
  int index(const std::string& pool) const;
  RowRange rows(const std::string& pool) const;
  bool leads(const std::string& pool) const { return index(pool) == 0; }

  // Of a pool or group that this rank is in, made when it is first asked for; its name says which
  // ranks, as a program may have several topologies. UsageError: it is not in it.
  Group group(const std::string& name) const;

 private:
  GroupFactory groups_;
  Topology topology_;
};

// "ci 0,1,2".
RETAPE_API std::string group_name(const std::string& name, const std::vector<int>& ranks);

}  // namespace retape::dist
