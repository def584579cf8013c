// The text to learn from, and the windows of it that a step sees. A step's windows depend only on
// the seed and on the number of windows drawn before, so a resumed run sees what the uninterrupted
// run would have seen.
#pragma once

#include "error.h"

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace train {

// A well-mixed 64-bit number from another (splitmix64).
inline uint64_t mix(uint64_t number) {
  number += 0x9E3779B97F4A7C15;
  number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9;
  number = (number ^ (number >> 27)) * 0x94D049BB133111EB;
  return number ^ (number >> 31);
}

// One of a few hundred: a vowel or none, then one or two syllables.
inline std::string made_up_word(uint64_t number) {
  const std::string consonants = "bcdfghjklmnpqrstvwxyz", vowels = "aeiou";
  std::string word;
  if (number % 3 == 0) {
    word += vowels[number % 5];
  }
  for (uint64_t syllables = 1 + number % 2; syllables > 0; --syllables) {
    number >>= 8;
    word += consonants[number % 21];
    word += vowels[number % 5];
  }
  return word;
}

// About 33,000 characters of made-up sentences, the same as in Python.
inline std::string tiny_corpus() {
  std::string text;
  for (uint64_t line = 0; line < 1500; ++line) {
    const auto word = [&](int i) { return made_up_word(mix(5 * line + i)); };
    auto first = word(0);
    first[0] = static_cast<char>(first[0] - 'a' + 'A');
    text += first + " " + word(1) + " " + word(2) + ", " + std::to_string(mix(5 * line + 4) % 100) +
        " " + word(3) + ".\n";
  }
  return text;
}

class Text {
 public:
  // The generated corpus where no file is named.
  static Text of_file(const std::string& path) {
    if (path.empty()) {
      return Text(tiny_corpus());
    }
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) {  // it opens, and the first read throws
      errno = EISDIR;
      refuse_errno("--text: cannot read " + path);
    }
    std::ifstream file(path, std::ios::binary);
    std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (!file.is_open() || file.bad()) {
      refuse_errno("--text: cannot read " + path);
    }
    return Text(content);
  }

  explicit Text(const std::string& content) {
    std::array<bool, 256> occurs{};
    for (const unsigned char byte : content) {
      occurs[byte] = true;
      digest_ = (digest_ ^ byte) * 0x100000001B3;  // 64-bit FNV-1a
    }
    std::array<uint8_t, 256> id{};
    for (int byte = 0; byte < 256; ++byte) {
      if (occurs[byte]) {
        id[byte] = static_cast<uint8_t>(alphabet_.size());
        alphabet_.push_back(static_cast<uint8_t>(byte));
      }
    }
    ids_.reserve(content.size());
    for (const unsigned char byte : content) {
      ids_.push_back(id[byte]);
    }
  }

  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  const std::vector<uint8_t>& alphabet() const { return alphabet_; }

  // To tell texts apart.
  std::string digest() const {
    char text[17];
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(digest_));
    return text;
  }

  // Ids of windows number `position` and on, one column longer than the context.
  at::Tensor batch(uint64_t seed, uint64_t position, int64_t rows, int64_t context) const {
    auto ids = at::empty({rows, context + 1}, at::kLong);
    auto* out = ids.mutable_data_ptr<int64_t>();
    for (int64_t row = 0; row < rows; ++row) {
      const auto start = mix(mix(seed) + position + row) % (ids_.size() - context);
      for (int64_t i = 0; i <= context; ++i) {
        *out++ = ids_[start + i];
      }
    }
    return ids;
  }

 private:
  std::vector<uint8_t> ids_;
  std::vector<uint8_t> alphabet_;
  uint64_t digest_ = 0xCBF29CE484222325;
};

}  // namespace train
