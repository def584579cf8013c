// Tests with ranks: processes that are forked from the test, which then looks at how each has
// ended.
#pragma once

#include <ranks/launch.h>
#include <retape/dist/dist.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace retape::dist {

using ranks::RankEnd;
using ranks::run_ranks;
using ranks::RunOptions;
using ranks::World;
using ranks::WorldOptions;

namespace testing {

// In a rank: its error becomes the test's failure.
#define RANK_EXPECT(condition)                                                       \
  do {                                                                               \
    if (!(condition)) {                                                              \
      throw std::runtime_error(                                                      \
          std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": " #condition); \
    }                                                                                \
  } while (false)

#define RANK_EXPECT_EQ(a, b)                                                               \
  do {                                                                                     \
    const auto left = (a);                                                                 \
    const auto right = (b);                                                                \
    if (!(left == right)) {                                                                \
      std::ostringstream text;                                                             \
      text << __FILE__ << ":" << __LINE__ << ": " #a " == " #b ": " << left << " against " \
           << right;                                                                       \
      throw std::runtime_error(text.str());                                                \
    }                                                                                      \
  } while (false)

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto x = a.contiguous(), y = b.contiguous();
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
      (x.nbytes() == 0 ||
       std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);  // -0 is not 0
}

inline void expect_ranks(
    int ranks, const std::function<void(World&)>& body, RunOptions options = {}) {
  if (options.timeout > std::chrono::minutes(3)) {
    options.timeout = std::chrono::minutes(3);
  }
  const auto ends = run_ranks(ranks, body, options);
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    EXPECT_EQ(ends[rank].exit_code, 0)
        << "rank " << rank << ", signal " << ends[rank].signal << ": " << ends[rank].error;
  }
}

// What a rank's call raises: "" if nothing.
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const CollectiveError& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline void expect_text(const std::string& text, const std::vector<std::string>& parts, int line) {
  for (const auto& part : parts) {
    if (!contains(text, part)) {
      throw std::runtime_error(
          "line " + std::to_string(line) + ": \"" + part + "\" is not in: " + text);
    }
  }
}
#define RANK_EXPECT_TEXT(text, ...) \
  retape::dist::testing::expect_text(text, {__VA_ARGS__}, __LINE__)

inline RunOptions with_timeout(int milliseconds) {
  RunOptions options;
  options.world.timeout = std::chrono::milliseconds(milliseconds);
  return options;
}

}  // namespace testing

}  // namespace retape::dist
