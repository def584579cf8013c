// Topology: which ranks there are, what they are called together, and which rows of the batch each
// has.
//
//   retape::dist::Topology topology(/*rows=*/24, {
//       {"ci", {0, 1, 2, 3}},            // rows 0..6, 6..12, 12..18, 18..24
//       {"block0", {4, 5}},              // rows 0..12, 12..24
//       {"ppgd", {6, 7}, {{0, 7}, {7, 24}}},  // its own cut
//   }, {
//       {"ci+ppgd", {0, 1, 2, 3, 6, 7}},  // ranks that do something together, without rows of
//       their own
//   });
//   topology.overlap("ci", 2, "ppgd", 1);   // rows 12..18
//
// A value, built once, the same on every rank: a Placement compares it, and has the groups. A rank
// may be in several pools. Nothing here communicates.
#pragma once

#include <retape/api.h>

#include <cstdint>
#include <string>
#include <vector>

namespace retape::dist {

// Rows of the global batch: begin, up to but without end.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  bool operator==(const RowRange& other) const { return begin == other.begin && end == other.end; }
};

// What both have; empty if nothing.
RETAPE_API RowRange overlap(RowRange a, RowRange b);

// `rows` cut into `shards` that differ by at most one row, longer ones first.
RETAPE_API std::vector<RowRange> even_shards(int64_t rows, int64_t shards);

struct RETAPE_API Pool {
  std::string name;
  std::vector<int> ranks;             // in the order of their shards; the first one leads
  std::vector<RowRange> shards = {};  // one per rank; empty: even_shards

  int size() const { return static_cast<int>(ranks.size()); }
  int leader() const { return ranks.front(); }
  int index_of(int rank) const;  // -1 if it is not in the pool
};

// Ranks of any pools under a name.
struct RETAPE_API NamedRanks {
  std::string name;
  std::vector<int> ranks;  // in the order of their index; the first one leads
};

class RETAPE_API Topology {
 public:
  // UsageError: two pools or groups of one name, a rank twice in one, shards that leave a row out
  // or have one twice, more shards than ranks or fewer, no rows at all, a rank in a group but in no
  // pool. A rank's own shard may be empty: it has run out of rows.
  Topology(int64_t rows, std::vector<Pool> pools, std::vector<NamedRanks> groups = {});

  int64_t rows() const { return rows_; }
  int world_size() const;  // highest rank and one
  const std::vector<Pool>& pools() const { return pools_; }
  const Pool& pool(const std::string& name) const;  // UsageError with the names that there are
  const std::vector<NamedRanks>& groups() const { return groups_; }  // beside pools
  const std::vector<int>& ranks_of(
      const std::string& name) const;  // a pool's or a group's; UsageError
  std::vector<int> all_ranks() const;  // of all pools, sorted

  // Rows that the i-th of one pool and the j-th of another both have.
  RowRange overlap(const std::string& a, int i, const std::string& b, int j) const;

  // All of it in one line; equal texts are equal topologies.
  std::string text() const;

 private:
  int64_t rows_;
  std::vector<Pool> pools_;
  std::vector<NamedRanks> groups_;
};

}  // namespace retape::dist
