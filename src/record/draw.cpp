#include "record/draw.h"

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
    : source_(std::move(source)), state_(std::move(state)) {}

std::unique_ptr<Draw> Draw::before(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  at::Generator source;
  if (op.generator_arg >= 0 && args[op.generator_arg].isGenerator()) {
    source = args[op.generator_arg].toGenerator();
  }
  if (!source.defined()) {
    source = at::globalContext().defaultGenerator(device_of(args));
  }
  std::lock_guard<std::mutex> lock(source.mutex());
  return std::unique_ptr<Draw>(new Draw(source, source.clone()));
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

Draw::Rewind::Rewind(const Draw& draw) : source_(draw.source_) {
  rewind_mutex().lock();
  later_ = state_of(source_);
  set_state(source_, state_of(draw.state_));
}

Draw::Rewind::~Rewind() {
  set_state(source_, later_);
  rewind_mutex().unlock();
}

}  // namespace retape::detail
