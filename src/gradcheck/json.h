// JSON, written. Values are texts already; the writer sets names, commas and brackets.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace retape::dist::detail::json {

inline std::string text(const std::string& value) {
  std::string result = "\"";
  for (const unsigned char c : value) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += static_cast<char>(c);
    } else if (c < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", c);
      result += escaped;
    } else {
      result += static_cast<char>(c);
    }
  }
  return result + "\"";
}

// The fewest digits that read back as the same number; null if it is not finite.
inline std::string number(double value) {
  if (!std::isfinite(value)) {
    return "null";
  }
  char printed[32];
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(printed, sizeof(printed), "%.*g", digits, value);
    if (std::strtod(printed, nullptr) == value) {
      break;
    }
  }
  return printed;
}

inline std::string boolean(bool value) {
  return value ? "true" : "false";
}

template <typename Items, typename Each>
std::string array(const Items& items, Each each) {
  std::string result = "[";
  for (const auto& item : items) {
    result += (result.size() == 1 ? "" : ", ") + each(item);
  }
  return result + "]";
}

class Object {
 public:
  Object& add(const char* name, const std::string& value) {
    body_ += (body_.empty() ? "" : ", ") + text(name) + ": " + value;
    return *this;
  }
  std::string str() const { return "{" + body_ + "}"; }

 private:
  std::string body_;
};

}  // namespace retape::dist::detail::json
