// Replay runs an op under the settings that forward ran it under, and leaves the caller's alone.
#include "support.h"

#include <retape/replayable.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <torch/library.h>

#include <array>

namespace retape::testing {
namespace {

constexpr size_t kSettings = 14;
using Settings = std::array<float, kSettings>;

Settings settings_now() {
  auto& context = at::globalContext();
  // A denormal product: zero where denormals are flushed.
  volatile float tiny = 1e-20f;
  volatile float product = tiny * tiny;
  return {
      static_cast<float>(c10::GradMode::is_enabled()),
      static_cast<float>(context.deterministicAlgorithms()),
      static_cast<float>(context.deterministicAlgorithmsWarnOnly()),
      static_cast<float>(context.deterministicFillUninitializedMemory()),
      static_cast<float>(context.userEnabledMkldnn()),
      static_cast<float>(context.deterministicMkldnn()),
      static_cast<float>(context.userEnabledNNPACK()),
      static_cast<float>(context.userEnabledCuDNN()),
      static_cast<float>(context.benchmarkCuDNN()),
      static_cast<float>(context.deterministicCuDNN()),
      static_cast<float>(product == 0.0f),
      static_cast<float>(context.float32MatmulPrecision()),
      static_cast<float>(c10::get_default_dtype_as_scalartype()),
      static_cast<float>(at::get_num_threads())};
}

// An op whose result is the settings that it runs under.
at::Tensor tell_settings(const at::Tensor& like) {
  auto told = at::empty({static_cast<int64_t>(kSettings)}, like.options().dtype(at::kFloat));
  const auto settings = settings_now();
  std::copy(settings.begin(), settings.end(), told.mutable_data_ptr<float>());
  return told;
}

TORCH_LIBRARY(retape_flags_test, m) {
  m.def("tell_settings(Tensor like) -> Tensor", {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(retape_flags_test, CPU, m) {
  m.impl("tell_settings", &tell_settings);
}

Tensor settings_as_an_op(const Tensor& like) {
  replayable("retape_flags_test::tell_settings");
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("retape_flags_test::tell_settings", "")
                             .typed<Tensor(const Tensor&)>();
  return op.call(like);
}

// Changes one setting; the test restores it.
struct Setting {
  const char* name;
  std::function<void(bool changed)> set;
};

std::vector<Setting> all_settings() {
  auto& context = at::globalContext();
  const int threads = at::get_num_threads();
  return {
      {"deterministic", [&](bool on) { context.setDeterministicAlgorithms(on, false); }},
      {"warn only", [&](bool on) { context.setDeterministicAlgorithms(on, on); }},
      {"fill uninitialized",
       [&](bool on) { context.setDeterministicFillUninitializedMemory(!on); }},
      {"mkldnn", [&](bool on) { context.setUserEnabledMkldnn(!on); }},
      {"deterministic mkldnn", [&](bool on) { context.setDeterministicMkldnn(on); }},
      {"nnpack", [&](bool on) { context.setUserEnabledNNPACK(!on); }},
      {"cudnn", [&](bool on) { context.setUserEnabledCuDNN(!on); }},
      {"benchmark cudnn", [&](bool on) { context.setBenchmarkCuDNN(on); }},
      {"deterministic cudnn", [&](bool on) { context.setDeterministicCuDNN(on); }},
      {"flush denormal", [](bool on) { at::globalContext().setFlushDenormal(on); }},
      {"matmul precision",
       [&](bool on) { context.setFloat32MatmulPrecision(on ? "medium" : "highest"); }},
      {"default dtype",
       [](bool on) {
         c10::set_default_dtype(c10::scalarTypeToTypeMeta(on ? c10::kDouble : c10::kFloat));
       }},
      {"threads", [threads](bool on) { at::set_num_threads(on ? threads + 1 : threads); }},
      {"grad mode", [](bool on) { c10::GradMode::set_enabled(!on); }},
  };
}

void expect_forwards_settings(const Setting& setting, bool changed_in_forward) {
  SCOPED_TRACE(setting.name);
  const auto x = leaf({static_cast<int64_t>(kSettings)});
  setting.set(changed_in_forward);
  Recompute scope(drop_all());
  auto told = settings_as_an_op(x.detach() * 2);
  const auto in_forward = told.clone();
  c10::GradMode::set_enabled(true);
  auto loss = (x * told).sum();
  told = Tensor();  // so that backward has to replay it
  scope.close();
  setting.set(!changed_in_forward);
  c10::GradMode::set_enabled(true);
  const auto before = settings_now();
  loss.backward();
  const auto after = settings_now();
  setting.set(false);
  EXPECT_GT(scope.stats().ops_replayed, 0u);
  EXPECT_TRUE(same_bits(x.grad(), in_forward));
  EXPECT_EQ(before, after);
}

TEST(Flags, ReplayRunsUnderForwardsSettingsAndPutsBackTheCallers) {
  for (const auto& setting : all_settings()) {
    expect_forwards_settings(setting, /*changed_in_forward=*/true);
    expect_forwards_settings(setting, /*changed_in_forward=*/false);
  }
}

TEST(Flags, OpsOfOneTapeEachHaveTheirOwn) {
  const auto x = leaf({static_cast<int64_t>(kSettings)});
  auto& context = at::globalContext();
  Recompute scope(drop_all());
  auto first = settings_as_an_op(x.detach() * 2);
  context.setDeterministicAlgorithms(true, true);
  auto second = settings_as_an_op(x.detach() * 3);
  context.setDeterministicAlgorithms(false, false);
  auto third = settings_as_an_op(x.detach() * 4);
  const auto expected = first + 2 * second + 4 * third;
  auto loss = (x * first + 2 * (x * second) + 4 * (x * third)).sum();
  scope.close();
  first = second = third = Tensor();
  loss.backward();
  EXPECT_TRUE(same_bits(x.grad(), expected));
}

TEST(Flags, EveryMatrixProductAsksForItsPrecision) {
  const auto x = leaf({static_cast<int64_t>(kSettings)});
  auto& context = at::globalContext();
  const auto given = x.detach();
  Recompute scope(drop_all());
  auto first = settings_as_an_op(given);
  context.setFloat32MatmulPrecision("medium");
  auto second = settings_as_an_op(given);
  context.setFloat32MatmulPrecision("highest");
  const auto expected = first + 2 * second;
  auto loss = (x * first + 2 * (x * second)).sum();
  scope.close();
  first = second = Tensor();
  loss.backward();
  EXPECT_TRUE(same_bits(x.grad(), expected));
}

TEST(Flags, WarnOnlyAloneIsASettingToo) {
  auto& context = at::globalContext();
  expect_forwards_settings(
      {"warn only", [&](bool on) { context.setDeterministicAlgorithms(true, on); }},
      /*changed_in_forward=*/true);
  context.setDeterministicAlgorithms(false, false);
}

}  // namespace
}  // namespace retape::testing
