// Numbers and texts in one string, for ranks to send one another.
#pragma once

#include <retape/error.h>

#include <cstdint>
#include <cstring>
#include <string>

namespace retape::dist::detail {

class Packer {
 public:
  Packer& number(int64_t value) { return bytes(&value, sizeof(value)); }
  Packer& real(double value) { return bytes(&value, sizeof(value)); }
  Packer& text(const std::string& value) {
    number(static_cast<int64_t>(value.size()));
    return bytes(value.data(), value.size());
  }
  const std::string& str() const { return packed_; }

 private:
  Packer& bytes(const void* from, size_t count) {
    packed_.append(static_cast<const char*>(from), count);
    return *this;
  }
  std::string packed_;
};

// In the order in which they were packed. Error where there is less.
class Unpacker {
 public:
  explicit Unpacker(const std::string& packed) : packed_(packed) {}

  int64_t number() {
    int64_t value = 0;
    std::memcpy(&value, take(sizeof(value)), sizeof(value));
    return value;
  }
  double real() {
    double value = 0;
    std::memcpy(&value, take(sizeof(value)), sizeof(value));
    return value;
  }
  std::string text() {
    const auto size = static_cast<size_t>(number());
    return std::string(take(size), size);
  }

 private:
  const char* take(size_t count) {
    if (count > packed_.size() - next_) {
      throw Error("[GradCheck] a rank's message ends too early.");
    }
    next_ += count;
    return packed_.data() + next_ - count;
  }
  const std::string& packed_;
  size_t next_ = 0;
};

}  // namespace retape::dist::detail
