// Flags: process settings that choose a kernel or its order of summation. Replay runs an op under
// the settings it ran under in forward, whatever they are by then.
#pragma once

#include <ATen/Context.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>

namespace retape::detail {

// Of float32 products. Older settings and newer ones stand beside each other, and torch compares
// them.
struct Precision {
  std::array<at::Float32Precision, 9> settings{};  // by backend and op
  at::Float32MatmulPrecision matmul = at::Float32MatmulPrecision::HIGHEST;
  bool tf32_cudnn = false;
  bool tf32_onednn = false;

  bool operator==(const Precision&) const = default;
};

struct Flags {
  bool grad_mode = false;
  bool deterministic = false;
  bool deterministic_warn_only = false;
  bool fill_uninitialized = false;
  bool mkldnn = false;
  bool deterministic_mkldnn = false;
  bool nnpack = false;
  bool cudnn = false;
  bool benchmark_cudnn = false;
  bool deterministic_cudnn = false;
  bool flush_denormal = false;
  Precision precision;
  c10::ScalarType default_dtype = c10::kFloat;  // of factories and of promoted Python numbers
  int threads = 0;

  bool operator==(const Flags&) const = default;

  // `known`: settings of an op shortly before, for one that multiplies no matrices. The precision
  // of products is slow to ask for, and is then taken from there.
  static Flags now(const Flags* known = nullptr);
};

// Sets what differs from now.
void set_flags(const Flags& wanted);

// The same, and puts it back.
class FlagsGuard {
 public:
  explicit FlagsGuard(const Flags& wanted);
  ~FlagsGuard();
  FlagsGuard(const FlagsGuard&) = delete;
  FlagsGuard& operator=(const FlagsGuard&) = delete;

 private:
  Flags before_;
  bool changed_;
};

}  // namespace retape::detail
