// Unite: what every rank has of a run, brought to the first one.
//
// Each rank tells all others of its run in one text; then those that hold tensors which the first
// has not send it their bytes. Two messages for a run, since there are many.
#pragma once

#include "dist/gradcheck/judge.h"

#include <retape/dist/contribution.h>
#include <retape/dist/group.h>

namespace retape::dist::detail {

struct RankError {
  int rank;
  std::string text;
  bool collective;  // it waited for others, or they for it: groups are broken
};

// What a rank has of a run: an error, or what came of it.
struct Share {
  std::optional<RankError> error = {};
  bool ran = false;  // the step was called
  Outcome outcome = {};
  std::vector<Contribution> seen = {};
  bool hit = false;  // the mutation was applied here
};

// What all have of it.
struct Ran {
  std::vector<RankError> errors = {};  // the same on all; where there are any, nothing else is
  United united = {};  // on the first rank; on others which numbers are not the same on all, only
  std::vector<Contribution> seen = {};  // on any rank, each once, in the order of ranks
  bool hit = false;                     // on any rank
  std::exception_ptr own = {};          // the error of this rank
};

// UsageError: a tensor whose memory cannot be read as it is.
void check(const Outcome& outcome);

// `replicated`: see GradCheckOptions.
Ran unite(const Group& everyone, const Share& mine, bool replicated);

}  // namespace retape::dist::detail
