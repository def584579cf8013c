#include "record/flags.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace retape::detail {

namespace {

bool flushes_denormals() {
#if defined(__SSE2__)
  return _MM_GET_FLUSH_ZERO_MODE() == _MM_FLUSH_ZERO_ON;
#else
  return false;
#endif
}

// Settings as they are, "inherit" among them. at::Context's own getter resolves those, so that what it
// returns cannot be put back; and its getter of the older setting raises where both were used.
template <auto Member>
struct Settings {
  friend auto& settings_of(at::Context& context) { return context.*Member; }
};
auto& settings_of(at::Context& context);
template struct Settings<&at::Context::fp32_precision>;

constexpr std::pair<at::Float32Backend, at::Float32Op> kSettings[kPrecisions] = {
    {at::Float32Backend::GENERIC, at::Float32Op::ALL},
    {at::Float32Backend::MKLDNN, at::Float32Op::ALL},
    {at::Float32Backend::MKLDNN, at::Float32Op::CONV},
    {at::Float32Backend::MKLDNN, at::Float32Op::RNN},
    {at::Float32Backend::MKLDNN, at::Float32Op::MATMUL},
    {at::Float32Backend::CUDA, at::Float32Op::ALL},
    {at::Float32Backend::CUDA, at::Float32Op::CONV},
    {at::Float32Backend::CUDA, at::Float32Op::RNN},
    {at::Float32Backend::CUDA, at::Float32Op::MATMUL},
};

std::array<at::Float32Precision, kPrecisions> precisions() {
  std::array<at::Float32Precision, kPrecisions> all{};
  const auto& settings = settings_of(at::globalContext());
  for (size_t i = 0; i < kPrecisions; ++i) {
    all[i] = settings.at(kSettings[i]);
  }
  return all;
}

void set_precisions(const std::array<at::Float32Precision, kPrecisions>& all) {
  auto& settings = settings_of(at::globalContext());
  for (size_t i = 0; i < kPrecisions; ++i) {
    settings.at(kSettings[i]) = all[i];
  }
}

void apply(const Flags& from, const Flags& to) {
  auto& context = at::globalContext();
  c10::GradMode::set_enabled(to.grad_mode);
  if (from.deterministic != to.deterministic ||
      from.deterministic_warn_only != to.deterministic_warn_only) {
    context.setDeterministicAlgorithms(to.deterministic, to.deterministic_warn_only);
  }
  if (from.fill_uninitialized != to.fill_uninitialized) {
    context.setDeterministicFillUninitializedMemory(to.fill_uninitialized);
  }
  if (from.mkldnn != to.mkldnn) {
    context.setUserEnabledMkldnn(to.mkldnn);
  }
  if (from.deterministic_mkldnn != to.deterministic_mkldnn) {
    context.setDeterministicMkldnn(to.deterministic_mkldnn);
  }
  if (from.nnpack != to.nnpack) {
    context.setUserEnabledNNPACK(to.nnpack);
  }
  if (from.cudnn != to.cudnn) {
    context.setUserEnabledCuDNN(to.cudnn);
  }
  if (from.benchmark_cudnn != to.benchmark_cudnn) {
    context.setBenchmarkCuDNN(to.benchmark_cudnn);
  }
  if (from.deterministic_cudnn != to.deterministic_cudnn) {
    context.setDeterministicCuDNN(to.deterministic_cudnn);
  }
  if (from.flush_denormal != to.flush_denormal) {
    at::Context::setFlushDenormal(to.flush_denormal);
  }
  if (from.precision != to.precision) {
    set_precisions(to.precision);
  }
  if (from.default_dtype != to.default_dtype) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(to.default_dtype));
  }
  if (from.threads != to.threads) {
    at::set_num_threads(to.threads);
  }
}

}  // namespace

Flags Flags::now(const Flags* known) {
  const auto& context = at::globalContext();
  Flags flags;
  flags.grad_mode = c10::GradMode::is_enabled();
  flags.deterministic = context.deterministicAlgorithms();
  flags.deterministic_warn_only = context.deterministicAlgorithmsWarnOnly();
  flags.fill_uninitialized = context.deterministicFillUninitializedMemory();
  flags.mkldnn = context.userEnabledMkldnn();
  flags.deterministic_mkldnn = context.deterministicMkldnn();
  flags.nnpack = context.userEnabledNNPACK();
  flags.cudnn = context.userEnabledCuDNN();
  flags.benchmark_cudnn = context.benchmarkCuDNN();
  flags.deterministic_cudnn = context.deterministicCuDNN();
  flags.flush_denormal = flushes_denormals();
  flags.precision = known != nullptr ? known->precision : precisions();
  flags.default_dtype = c10::get_default_dtype_as_scalartype();
  flags.threads = at::get_num_threads();
  return flags;
}

void set_flags(const Flags& wanted) {
  apply(Flags::now(), wanted);
}

FlagsGuard::FlagsGuard(const Flags& wanted) : before_(Flags::now()) {
  changed_ = !(before_ == wanted);
  if (changed_) {
    apply(before_, wanted);
  }
}

FlagsGuard::~FlagsGuard() {
  if (changed_) {
    apply(Flags::now(), before_);
  }
}

}  // namespace retape::detail
