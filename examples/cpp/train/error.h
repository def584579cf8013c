// How the program ends when it cannot go on: a text for the user and an exit code, those of
// `retape`.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

namespace train {

constexpr int kUsage = 2;      // arguments, files
constexpr int kBudget = 4;     // the memory limit
constexpr int kInternal = 70;  // none of the user's doing; 1 would say that gradients differ

class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void refuse_errno(const std::string& what) {
  const int code = errno;
  throw Refused(what + " (" + std::strerror(code) + ")");
}

// Of what it says; what follows is torch's stack, which RETAPE_DEBUG=1 shows.
inline std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return std::getenv("RETAPE_DEBUG") ? text : text.substr(0, text.find('\n'));
}

inline bool is_out_of_memory(const std::exception& error) {
  const std::string text = error.what();
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      text.find("can't allocate memory") != std::string::npos ||
      text.find("not enough memory") != std::string::npos ||
      text.find("could not create a primitive") != std::string::npos ||  // oneDNN's
      text.rfind("[enforce fail", 0) ==
      0;  // of an allocator; cut short where nothing is left for the rest
}

}  // namespace train
