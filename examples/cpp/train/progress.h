// What is said while it trains: one live line on a terminal, a line per step elsewhere.
#pragma once

#include "numbers.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>

namespace train {

struct Totals {
  int64_t step = 0, steps = 0;
  float loss = 0;
  double seconds = 0, replay_seconds = 0;  // of this process
  int64_t tokens = 0, peak_bytes = 0;

  double tokens_per_second() const { return seconds > 0 ? tokens / seconds : 0; }
  double replay_share() const { return seconds > 0 ? replay_seconds / seconds : 0; }
};

class Progress {
 public:
  explicit Progress(bool quiet)
      : quiet_(quiet),
        live_(isatty(STDERR_FILENO) != 0 && std::getenv("CI") == nullptr) {}
  ~Progress() { end(); }

  void note(const std::string& text) {
    if (!quiet_) {
      std::cerr << text << std::endl;
    }
  }

  void step(const Totals& totals) {
    if (quiet_) {
      return;
    }
    const auto line = "step " + std::to_string(totals.step) + "/" + std::to_string(totals.steps) +
        "  loss " + printed_loss(totals.loss) + "  tokens/s " +
        printed("%.0f", totals.tokens_per_second()) + "  peak " +
        printed_bytes(static_cast<double>(totals.peak_bytes)) + "  replay " +
        printed("%.1f", 100 * totals.replay_share()) + " %";
    std::cerr << (live_ ? "\r" + line + "\x1b[K" : line + "\n") << std::flush;
    open_ = live_;
  }

  void end() {
    if (open_) {
      std::cerr << std::endl;
    }
    open_ = false;
  }

 private:
  bool quiet_, live_;
  bool open_ = false;  // a live line has no end yet
};

}  // namespace train
