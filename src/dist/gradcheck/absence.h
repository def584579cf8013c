// Absence: what some ranks of a run return and others leave out.
//
// Where ranks are replicas that is a difference. Where they hold different parameters it may be
// meant, and a note says which ranks were not compared.
#pragma once

#include "dist/gradcheck/judge.h"
#include "dist/gradcheck/manifest.h"

#include <map>

namespace retape::dist::detail {

// `ranks`: of each manifest. A rank that names a tensor and has none is not absent: see
// United::odd_gradients.
std::vector<Absence> absences_in(
    const std::vector<Manifest>& manifests, const std::vector<int>& ranks);

// Ranks that ran and return nothing at all.
std::vector<int> silent_in(const std::vector<Manifest>& manifests, const std::vector<int>& ranks);

// Why a row differs.
std::string difference(const Absence& absence);

// Notes for a report, over all runs. Names that whole pools or groups return, and other pools do
// not, have one note for all of them: each pool may own its parameters, or have lost one that it
// shares, which looks the same.
class AbsenceNotes {
 public:
  void add(const NamedTopology& topology, const United& united);
  std::vector<std::string> notes() const;

 private:
  using Names = std::vector<std::string>;
  struct LeftOut {
    std::map<std::string, Names> names;  // by what they are of
    Names topologies;
  };
  void add(const std::string& text, const std::string& topology);
  bool add_pools(
      const NamedTopology& topology, const std::vector<int>& absent, const Absence& absence);

  std::vector<std::pair<std::string, Names>> said_;      // by what is said: topologies, in order
  std::map<std::pair<Names, Names>, LeftOut> of_pools_;  // by the pools without them, and with them
};

}  // namespace retape::dist::detail
