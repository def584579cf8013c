#include "dist/rank_text.h"

#include <iterator>
#include <sstream>

namespace retape::dist::detail {

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

std::string numbers_text(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) {
    text += (text.empty() ? "" : " ") + std::to_string(number);
  }
  return text;
}

std::vector<int> numbers_from(const std::string& text) {
  std::istringstream numbers(text);
  return {std::istream_iterator<int>(numbers), std::istream_iterator<int>()};
}

}  // namespace retape::dist::detail
