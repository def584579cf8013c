// Numbers as text, short for people.
#pragma once

#include <cstdio>
#include <string>

namespace retape::dist::detail {

// "0.25", "1.2e-16"
inline std::string short_number(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", number);
  return text;
}

inline std::string error_number(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2g", number);
  return text;
}

// "1 tensor", "3 tensors"
inline std::string counted(size_t n, const std::string& what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

}  // namespace retape::dist::detail
