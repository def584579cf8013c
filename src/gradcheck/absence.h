// Absence: what some ranks of a run return and others leave out.
//
// Where ranks are replicas that is a difference. Where they hold different parameters it may be meant, and a note says
// which ranks were not compared.
#pragma once

#include "gradcheck/judge.h"
#include "gradcheck/manifest.h"

namespace retape::dist::detail {

// `ranks`: of each manifest. A rank that names a tensor and has none is not absent: see United::odd_gradients.
std::vector<Absence> absences_in(const std::vector<Manifest>& manifests, const std::vector<int>& ranks);

// Ranks that ran and return nothing at all.
std::vector<int> silent_in(const std::vector<Manifest>& manifests, const std::vector<int>& ranks);

// Why a row differs.
std::string difference(const Absence& absence);

// Notes for a report, over all runs. Names that whole pools or groups return, and other pools do not, have one note for
// all of them: each pool may own its parameters, or have lost one that it shares, which looks the same.
class AbsenceNotes {
 public:
  void add(const NamedTopology& topology, const United& united);
  std::vector<std::string> notes() const;

 private:
  struct Said {
    std::string text, end;
    std::vector<std::string> topologies;  // in order
  };
  void add(const std::string& text, const char* end, const std::string& topology);

  std::vector<Said> said_;
};

}  // namespace retape::dist::detail
