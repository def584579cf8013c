// Unite: what every rank has, brought to the first one.
#pragma once

#include "gradcheck/judge.h"

#include <retape/dist/contribution.h>
#include <retape/dist/group.h>

namespace retape::dist::detail {

// One text of each rank, in order.
std::vector<std::string> gather_texts(const Group& group, const std::string& name, const std::string& text);

// UsageError: a tensor whose memory cannot be read as it is.
void check(const Outcome& outcome);

// On the first rank what all hold together; on others which tensors are not the same on all, only.
United unite(const Group& everyone, const Outcome& mine);

// Each once, in the order of ranks.
std::vector<Contribution> unite(const Group& everyone, const std::vector<Contribution>& mine);

}  // namespace retape::dist::detail
