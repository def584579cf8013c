// Vacuity: why a comparison that found nothing could not have found anything.
#pragma once

#include "verify/run.h"

#include <retape/check.h>

namespace retape::detail {

// Sees through "*" at the end of a pattern.
bool matches(const std::string& name, const std::vector<std::string>& patterns);

std::vector<std::string> vacuous_regions(
    const std::vector<SeenRegion>& regions,
    const VerifyOptions& options,
    bool grad_enabled,
    bool backward_ran);

std::vector<std::string> vacuous_gradients(
    const Trace& plain, const Trace& recomputed, const VerifyOptions& options);

}  // namespace retape::detail
