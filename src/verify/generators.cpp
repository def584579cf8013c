#include "verify/generators.h"

#include <retape/error.h>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include <mutex>

namespace retape::detail {

namespace {

at::Tensor state_of(at::Generator generator) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

// Of devices that have been used: asking for another one would start it.
std::vector<std::pair<std::string, at::Generator>> default_generators() {
  auto& context = at::globalContext();
  std::vector<std::pair<std::string, at::Generator>> all{
      {"cpu", context.defaultGenerator(c10::kCPU)}};
  if (const auto type = at::getAccelerator(/*checked=*/false)) {
    const auto& hooks = context.getAcceleratorHooksInterface(type);
    for (c10::DeviceIndex i = 0; i < hooks.deviceCount(); ++i) {
      if (hooks.hasPrimaryContext(i)) {
        const c10::Device device(*type, i);
        all.emplace_back(device.str(), context.defaultGenerator(device));
      }
    }
  }
  return all;
}

}  // namespace

GeneratorStates GeneratorStates::now(const std::vector<at::Generator>& own) {
  GeneratorStates states;
  for (const auto& [name, generator] : default_generators()) {
    states.default_.push_back({name, generator, state_of(generator)});
  }
  for (size_t i = 0; i < own.size(); ++i) {
    states.own_.push_back({"generator " + std::to_string(i), own[i], state_of(own[i])});
  }
  return states;
}

void GeneratorStates::restore() const {
  for (const auto* list : {&default_, &own_}) {
    for (const auto& one : *list) {
      set_state(one.generator, one.state);
    }
  }
}

void GeneratorStates::restore(const std::vector<at::Generator>& own) const {
  if (own.size() != own_.size()) {
    throw UsageError(
        "[verify] every start has the same generators: expected " + std::to_string(own_.size()) +
        ", got " + std::to_string(own.size()) + ". Fix: list the same ones each time.");
  }
  for (const auto& one : default_) {
    set_state(one.generator, one.state);
  }
  for (size_t i = 0; i < own.size(); ++i) {
    set_state(own[i], own_[i].state);
  }
}

NamedTensors GeneratorStates::named() const {
  NamedTensors result;
  for (const auto* list : {&default_, &own_}) {
    for (const auto& one : *list) {
      result.emplace_back(one.name, one.state);
    }
  }
  return result;
}

}  // namespace retape::detail
