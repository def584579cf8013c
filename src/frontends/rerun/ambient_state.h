// Surroundings: settings that a function reads when it runs, so that a second run goes as the first
// did. The settings of replay (record/flags.h), and those that choose ops rather than kernels:
// autocast and the backends of attention.
#pragma once

#include "tape/flags.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <array>
#include <string>
#include <vector>

namespace retape::detail {

struct Autocast {
  bool enabled = false;
  c10::ScalarType dtype = c10::kFloat;
  bool operator==(const Autocast&) const = default;
};

struct Attention {
  bool flash = false;
  bool flash3 = false;
  bool memory_efficient = false;
  bool math = false;
  bool cudnn = false;
  bool overrideable = false;
  bool reduced_precision_sums = false;
  std::array<at::SDPBackend, at::num_sdp_backends> order{};
  bool operator==(const Attention&) const = default;
};

struct Surroundings {
  Flags flags;
  std::array<Autocast, at::autocast::_AUTOCAST_SUPPORTED_DEVICES.size()> autocast;
  bool autocast_cache = true;
  Attention attention;

  static Surroundings now();
};

// How a second run goes otherwise than the first.
struct SurroundingsDifference {
  const char* kind;  // of a Finding (retape/check.h)
  std::string what;
};
std::vector<SurroundingsDifference> differences(
    const Surroundings& first, const Surroundings& second);

void set_surroundings(const Surroundings& wanted);

// Sets them, and puts back what was there.
class SurroundingsGuard {
 public:
  explicit SurroundingsGuard(const Surroundings& wanted);
  ~SurroundingsGuard();
  SurroundingsGuard(const SurroundingsGuard&) = delete;
  SurroundingsGuard& operator=(const SurroundingsGuard&) = delete;

 private:
  Surroundings before_;
  FlagsGuard flags_;
};

}  // namespace retape::detail
