// The header of a safetensors file: JSON, of which only what such a header may hold is read.
#pragma once

#include "error.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace train {

using Metadata = std::map<std::string, std::string>;

inline std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const unsigned char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += static_cast<char>(c);
    } else if (c < 0x20) {
      char escaped[7];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", c);
      result += escaped;
    } else {
      result += static_cast<char>(c);
    }
  }
  return result + "\"";
}

struct Entry {
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // in the data
};

// Reads the JSON of a header. Throws Refused at the first thing that is not part of one.
class HeaderReader {
 public:
  explicit HeaderReader(const std::string& text)
      : at_(text.data()),
        end_(text.data() + text.size()) {}

  void read(Metadata& metadata, std::map<std::string, Entry>& tensors) {
    each_member([&](const std::string& name) {
      if (name == "__metadata__") {
        each_member([&](const std::string& key) { metadata[key] = string(); });
      } else {
        tensors[name] = entry();
      }
    });
    skip_space();
    if (at_ != end_) {
      wrong();
    }
  }

 private:
  Entry entry() {
    Entry result;
    each_member([&](const std::string& key) {
      if (key == "dtype") {
        result.dtype = string();
      } else if (key == "shape") {
        result.shape = numbers();
      } else if (key == "data_offsets") {
        const auto offsets = numbers();
        if (offsets.size() != 2 || offsets[0] > offsets[1]) {
          wrong();
        }
        result.begin = offsets[0];
        result.end = offsets[1];
      } else {
        wrong();
      }
    });
    return result;
  }

  template <typename Visit>
  void each_member(const Visit& visit) {
    expect('{');
    if (accept('}')) {
      return;
    }
    do {
      const auto name = string();
      expect(':');
      visit(name);
    } while (accept(','));
    expect('}');
  }

  std::vector<int64_t> numbers() {
    std::vector<int64_t> result;
    expect('[');
    if (accept(']')) {
      return result;
    }
    do {
      skip_space();
      int64_t number = 0;
      const char* start = at_;
      while (at_ != end_ && *at_ >= '0' && *at_ <= '9' && at_ - start < 18) {
        number = number * 10 + (*at_++ - '0');
      }
      if (at_ == start) {
        wrong();
      }
      result.push_back(number);
    } while (accept(','));
    expect(']');
    return result;
  }

  std::string string() {
    expect('"');
    std::string result;
    for (; at_ != end_ && *at_ != '"'; ++at_) {
      if (*at_ != '\\') {
        result += *at_;
      } else if (++at_ == end_) {
        wrong();
      } else {
        result += escaped();
      }
    }
    expect_here('"');
    return result;
  }

  char escaped() {
    static const std::string kWritten = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    if (const auto known = kWritten.find(*at_); known != std::string::npos) {
      return kMeant[known];
    }
    unsigned code = 0;
    if (*at_ != 'u' || end_ - at_ < 5 || std::sscanf(at_ + 1, "%4x", &code) != 1 || code >= 0x80) {
      wrong();  // names and metadata of a run are ASCII
    }
    at_ += 4;
    return static_cast<char>(code);
  }

  void skip_space() {
    while (at_ != end_ && std::strchr(" \t\r\n", *at_) != nullptr && *at_ != '\0') {
      ++at_;
    }
  }

  bool accept(char c) {
    skip_space();
    if (at_ == end_ || *at_ != c) {
      return false;
    }
    ++at_;
    return true;
  }

  void expect(char c) {
    skip_space();
    expect_here(c);
  }

  void expect_here(char c) {
    if (at_ == end_ || *at_++ != c) {
      wrong();
    }
  }

  [[noreturn]] void wrong() { throw Refused("its header is not that of a safetensors file"); }

  const char* at_;
  const char* end_;
};

}  // namespace train
