// Puts the parts together that the core does not know by name. Once, when the first scope opens.
#pragma once

namespace retape::detail {

void install();

}  // namespace retape::detail
