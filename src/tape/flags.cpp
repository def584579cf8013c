#include "tape/flags.h"

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

// Settings as they are, "inherit" among them. at::Context's own getters resolve those, so that what
// they return cannot be put back, or raise where older and newer settings were mixed.
template <auto Settings, auto Matmul, auto Cudnn, auto Onednn>
struct Access {
  friend auto& settings_of(at::Context& context) { return context.*Settings; }
  friend auto& matmul_of(at::Context& context) { return context.*Matmul; }
  friend auto& tf32_cudnn_of(at::Context& context) { return context.*Cudnn; }
  friend auto& tf32_onednn_of(at::Context& context) { return context.*Onednn; }
};
auto& settings_of(at::Context& context);
auto& matmul_of(at::Context& context);
auto& tf32_cudnn_of(at::Context& context);
auto& tf32_onednn_of(at::Context& context);
template struct Access<
    &at::Context::fp32_precision,
    &at::Context::float32_matmul_precision,
    &at::Context::allow_tf32_cudnn,
    &at::Context::allow_tf32_onednn>;

using at::Float32Backend;
using at::Float32Op;
constexpr std::array<std::pair<Float32Backend, Float32Op>, 9> kSettings = {{
    {Float32Backend::GENERIC, Float32Op::ALL},
    {Float32Backend::MKLDNN, Float32Op::ALL},
    {Float32Backend::MKLDNN, Float32Op::CONV},
    {Float32Backend::MKLDNN, Float32Op::RNN},
    {Float32Backend::MKLDNN, Float32Op::MATMUL},
    {Float32Backend::CUDA, Float32Op::ALL},
    {Float32Backend::CUDA, Float32Op::CONV},
    {Float32Backend::CUDA, Float32Op::RNN},
    {Float32Backend::CUDA, Float32Op::MATMUL},
}};

Precision precision_now() {
  auto& context = at::globalContext();
  Precision now;
  for (size_t i = 0; i < kSettings.size(); ++i) {
    now.settings[i] = settings_of(context).at(kSettings[i]);
  }
  now.matmul = matmul_of(context);
  now.tf32_cudnn = tf32_cudnn_of(context);
  now.tf32_onednn = tf32_onednn_of(context);
  return now;
}

void set_precision(const Precision& wanted) {
  auto& context = at::globalContext();
  for (size_t i = 0; i < kSettings.size(); ++i) {
    settings_of(context).at(kSettings[i]) = wanted.settings[i];
  }
  matmul_of(context) = wanted.matmul;
  tf32_cudnn_of(context) = wanted.tf32_cudnn;
  tf32_onednn_of(context) = wanted.tf32_onednn;
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
    set_precision(to.precision);
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
  flags.precision = known != nullptr ? known->precision : precision_now();
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
