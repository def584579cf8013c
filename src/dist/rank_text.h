// Ranks in texts: for people, and in a store.
#pragma once

#include <string>
#include <vector>

namespace retape::dist::detail {

// "rank 2", "ranks 0, 1 and 4".
std::string ranks_text(const std::vector<int>& ranks);

// "2 5 7" and back.
std::string numbers_text(const std::vector<int>& numbers);
std::vector<int> numbers_from(const std::string& text);

}  // namespace retape::dist::detail
