#include <retape/dist/case.h>

#include "dist/gradcheck/sizes.h"

#include <algorithm>

namespace retape::dist {

std::vector<RowRange> Case::cut(RowRange rows) const {
  if (was_cut) {
    *was_cut = true;
  }
  const auto parts = std::clamp<int64_t>(microbatches, 1, std::max<int64_t>(rows.size(), 1));
  auto cut = detail::uneven_shards(rows.size(), static_cast<int>(parts), /*growing=*/true);
  for (auto& part : cut) {
    part = {part.begin + rows.begin, part.end + rows.begin};
  }
  return cut;
}

}  // namespace retape::dist
