// What a thread replays right now, for whoever measures (measure/). Nothing in the core asks, but
// for the question whether one replay is part of another.
#pragma once

#include <string>

namespace retape::detail {

struct Activity {
  bool replays = false;
  const std::string* region = nullptr;  // that is replayed
  const std::string* op = nullptr;      // that is replayed, or made ready for

  static const Activity& of_this_thread();
};

// While it lives, this thread replays.
class Replaying {
 public:
  Replaying();
  void in(const std::string& region);  // outlives the guard
  ~Replaying();
  Replaying(const Replaying&) = delete;
  Replaying& operator=(const Replaying&) = delete;

 private:
  const Activity before_;
};

// While it lives, its op is replayed: what is made ready for it, before it runs, counts as its own.
class ReplayedOp {
 public:
  explicit ReplayedOp(const std::string& name);  // outlives it
  ~ReplayedOp();
  ReplayedOp(const ReplayedOp&) = delete;
  ReplayedOp& operator=(const ReplayedOp&) = delete;

 private:
  const std::string* const before_;
};

}  // namespace retape::detail
