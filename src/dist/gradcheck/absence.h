// Absence: what some ranks of a run return and others leave out.
//
// Where ranks are replicas that is a difference. Where they hold different parameters it may be meant, and a note says
// which ranks were not compared.
#pragma once

#include "dist/gradcheck/judge.h"
#include "dist/gradcheck/manifest.h"

namespace retape::dist::detail {

// `ranks`: of each manifest. A rank that names a tensor and has none is not absent: see United::odd_gradients.
std::vector<Absence> absences_in(const std::vector<Manifest>& manifests, const std::vector<int>& ranks);

// Ranks that ran and return nothing at all.
std::vector<int> silent_in(const std::vector<Manifest>& manifests, const std::vector<int>& ranks);

// Why a row differs.
std::string difference(const Absence& absence);

// Notes for a report, over all runs. A name that whole pools or groups return, and no other rank, is not noted: each
// pool owns its parameters.
class AbsenceNotes {
 public:
  void add(const NamedTopology& topology, const United& united);
  std::vector<std::string> notes() const;

 private:
  void add(const std::string& text, const std::string& topology);

  // By what is said: topologies, in order.
  std::vector<std::pair<std::string, std::vector<std::string>>> said_;
};

}  // namespace retape::dist::detail
