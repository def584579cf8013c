#include "tape/rng_snapshot.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <cstring>
#include <mutex>

namespace retape::detail {

namespace {

c10::Device device_of(c10::ArrayRef<c10::IValue> args) {
  for (const auto& arg : args) {
    if (arg.isTensor() && arg.toTensor().defined()) {
      return arg.toTensor().device();
    }
    if (arg.isDevice()) {
      return arg.toDevice();
    }
  }
  return c10::Device(c10::kCPU);
}

at::Tensor state_of(at::Generator generator) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

std::mutex& rewind_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

}  // namespace

Draw::Draw(at::Generator source, at::Generator state)
    : source_(std::move(source)),
      state_(std::move(state)) {}

at::Generator Draw::generator_of(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  at::Generator source;
  if (op.generator_arg >= 0 && args[op.generator_arg].isGenerator()) {
    source = args[op.generator_arg].toGenerator();
  }
  if (const auto device = device_of(args); !source.defined() && !device.is_meta()) {
    source = at::globalContext().defaultGenerator(device);
  }
  return source;
}

std::unique_ptr<Draw> Draw::before(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  auto source = generator_of(op, args);
  return source.defined() ? of(std::move(source)) : nullptr;
}

std::unique_ptr<Draw> Draw::of(at::Generator source) {
  std::lock_guard<std::mutex> lock(source.mutex());
  return std::unique_ptr<Draw>(new Draw(source, source.clone()));
}

at::Tensor Draw::rewind() const {
  auto later = state_of(source_);
  set_state(source_, state_of(state_));
  return later;
}

void Draw::restore(const at::Tensor& later) const {
  set_state(source_, later);
}

bool Draw::moved() const {
  const auto before = state_of(state_);
  const auto after = state_of(source_);
  return before.nbytes() != after.nbytes() ||
      std::memcmp(before.const_data_ptr(), after.const_data_ptr(), before.nbytes()) != 0;
}

at::Generator Draw::fresh() const {
  return state_.clone();
}

Draw::Rewind::Rewind(const Draw& draw)
    : draw_(draw),
      lock_(rewind_mutex()),
      later_(draw_.rewind()) {}

Draw::Rewind::~Rewind() {
  draw_.restore(later_);
}

}  // namespace retape::detail
