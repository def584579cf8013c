// Who does what: three pools of ranks.
//
//   ci       owns theta, the CI function. Computes bounds, imp, and the CI function's backward
//   block b  owns V and U of some sites. Computes faith and stoch of those
//   ppgd     owns nothing: a copy of all V and U, sources of its rows. Computes ppgd
//
// Every pool cuts the batch for itself. Groups beyond pools: "layerwise", all blocks; "ci+block0"
// and so on, both ends of an edge; "block0+ppgd", the block's leader and then ppgd; "block0+ppgd
// leaders", the two leaders.
#pragma once

#include <retape/dist/placement.h>

#include <three_pool/losses.h>

namespace three_pool {

using retape::dist::group_name;

struct PoolSizes {
  int ci = 1, per_block = 1, blocks = 1, ppgd = 1;
  int ranks() const { return ci + per_block * blocks + ppgd; }
  std::string text() const;  // "4,2x2,2"
};

// Pools "ci", "block0", ..., "ppgd", of consecutive ranks. Rows that a pool's size does not divide
// are dealt out as evenly as can be.
retape::dist::Topology make_topology(PoolSizes sizes, int64_t rows = 24);

// UsageError: pools are not those of make_topology, or there are more blocks than sites.
PoolSizes sizes_of(const retape::dist::Topology& topology, size_t sites);

std::string block_name(int block);
std::string edge_name(const std::string& to);
std::string link_name(int block);
std::string leaders_name(int block);
SiteRange sites_of_block(int block, int blocks, size_t sites);

}  // namespace three_pool
