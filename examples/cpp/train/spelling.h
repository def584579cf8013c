// The right spelling of a word on a command line: train_gpt's, and that of bench/.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace train {

// How many letters to put in, leave out or change to get from one word to the other.
inline size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row[b.size()];
}

inline std::string offer(const std::string& word, const std::vector<std::string>& known) {
  const auto closest = *std::min_element(
      known.begin(), known.end(), [&](const auto& a, const auto& b) {
        return distance(word, a) < distance(word, b);
      });
  if (2 * distance(word, closest) <= word.size()) {
    return "Did you mean " + closest + "?";
  }
  std::string all = "There is: ";
  for (const auto& name : known) {
    all += (name == known.front() ? "" : ", ") + name;
  }
  return all + ".";
}

}  // namespace train
