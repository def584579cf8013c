// Placement: where a topology puts this rank, and the groups that it is in there.
//
//   const Placement placement(world, topology);       // on every rank of the topology: compared on
//   all placement.group("ci").sum("usage", usage);        // a pool's ranks, or a group's
//   placement.rows("ci");                             // this rank's rows of the batch
#pragma once

#include <retape/dist/topology.h>
#include <retape/dist/world.h>

#include <string>

namespace retape::dist {

class RETAPE_API Placement {
 public:
  // CollectiveError on all ranks of the topology: one has another, or has not come within the
  // timeout.
  Placement(const World& world, Topology topology);

  const Topology& topology() const { return topology_; }
  bool has(const std::string& name) const;  // this rank is in that pool or group

  // In a pool of this rank; UsageError: it is not in it.
  int index(const std::string& pool) const;
  RowRange rows(const std::string& pool) const;
  bool leads(const std::string& pool) const { return index(pool) == 0; }

  // Of a pool or group that this rank is in, made when it is first asked for; its name says which
  // ranks, as a world may have several topologies. UsageError: it is not in it.
  Group group(const std::string& name) const;

 private:
  World world_;
  Topology topology_;
};

// "ci 0,1,2".
RETAPE_API std::string group_name(const std::string& name, const std::vector<int>& ranks);

}  // namespace retape::dist
