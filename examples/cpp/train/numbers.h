// Numbers as text, the same as in the Python twin, and text as numbers.
#pragma once

#include "error.h"

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace train {

inline std::string printed(const char* format, double number) {
  char text[64];
  std::snprintf(text, sizeof(text), format, number);
  return text;
}

// The fewest digits that read back as the same number.
inline std::string shortest(double number) {
  for (int digits = 1; digits < 17; ++digits) {
    const auto text = printed(("%." + std::to_string(digits) + "g").c_str(), number);
    if (std::strtod(text.c_str(), nullptr) == number) {
      return text;
    }
  }
  return printed("%.17g", number);
}

// Nine digits tell any two floats apart.
inline std::string printed_loss(float loss) {
  return printed("%.9g", loss);
}

inline std::string printed_bytes(double bytes) {
  constexpr double kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;
  if (bytes >= kGiB) {
    return printed("%.1f GiB", bytes / kGiB);
  }
  if (bytes >= kMiB) {
    return printed("%.1f MiB", bytes / kMiB);
  }
  return bytes >= kKiB ? printed("%.1f KiB", bytes / kKiB) : printed("%.0f B", bytes);
}

inline int64_t whole_number(
    const std::string& option, const std::string& text, int64_t least, int64_t most = INT64_MAX) {
  char* end = nullptr;
  errno = 0;
  const long long number = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0') {
    throw Refused(option + ": expected a whole number, got '" + text + "'");
  }
  const bool beyond = errno == ERANGE;  // then the number is the one that is closest
  if (number < least || (beyond && number < 0)) {
    throw Refused(option + ": expected at least " + std::to_string(least) + ", got " + text);
  }
  if (number > most || beyond) {
    throw Refused(option + ": expected at most " + std::to_string(most) + ", got " + text);
  }
  return number;
}

// From 0, where that is included, to just below `high`.
inline double real_number(
    const std::string& option, const std::string& text, bool included, double high) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const bool above = included ? number >= 0 : number > 0;
  if (text.empty() || *end != '\0' || !above || !(number < high)) {
    throw Refused(
        option + ": expected a number " + (included ? "from 0" : "above 0") + " and below " +
        printed("%g", high) + ", got '" + text + "'");
  }
  return number;
}

constexpr double kMostBytes = 1e15;

// "268435456", "256MiB", "1.5 GiB".
inline int64_t size_in_bytes(const std::string& option, const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const bool digit = !text.empty() && std::isdigit(static_cast<unsigned char>(text[0]));
  std::string unit = end;
  unit.erase(0, unit.find_first_not_of(' '));
  double factor = 0;
  if (unit.empty() || unit == "B") {
    factor = 1;
  } else if (unit == "KiB") {
    factor = 1 << 10;
  } else if (unit == "MiB") {
    factor = 1 << 20;
  } else if (unit == "GiB") {
    factor = 1 << 30;
  }
  const double bytes = number * factor;
  if (!digit || !(bytes >= 1)) {
    throw Refused(
        option + ": expected a size like 256MiB (B, KiB, MiB or GiB), got '" + text + "'");
  }
  if (bytes > kMostBytes) {
    throw Refused(
        option + ": expected at most " + printed("%.0f", kMostBytes) + " bytes, got '" + text +
        "'");
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace train
