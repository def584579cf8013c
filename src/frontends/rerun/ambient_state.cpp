#include "frontends/rerun/ambient_state.h"

namespace retape::detail {

namespace {

Attention attention_now() {
  auto& context = at::globalContext();
  Attention now;
  now.flash = context.userEnabledFlashSDP();
  now.flash3 = context.userEnabledFA3SDP();
  now.memory_efficient = context.userEnabledMemEfficientSDP();
  now.math = context.userEnabledMathSDP();
  now.cudnn = context.userEnabledCuDNNSDP();
  now.overrideable = context.userEnabledOverrideableSDP();
  now.reduced_precision_sums = context.allowFP16BF16ReductionMathSDP();
  now.order = context.sDPPriorityOrder();
  return now;
}

void apply(const Attention& wanted) {
  if (attention_now() == wanted) {
    return;
  }
  auto& context = at::globalContext();
  context.setSDPUseFlash(wanted.flash);
  context.setSDPUseFA3(wanted.flash3);
  context.setSDPUseMemEfficient(wanted.memory_efficient);
  context.setSDPUseMath(wanted.math);
  context.setSDPUseCuDNN(wanted.cudnn);
  context.setSDPUseOverrideable(wanted.overrideable);
  context.setAllowFP16BF16ReductionMathSDP(wanted.reduced_precision_sums);
  std::vector<int64_t> order;
  for (const auto backend : wanted.order) {
    order.push_back(static_cast<int64_t>(backend));
  }
  context.setSDPPriorityOrder(order);
}

void apply_autocast(const Surroundings& wanted) {
  for (size_t i = 0; i < wanted.autocast.size(); ++i) {
    const auto device = at::autocast::_AUTOCAST_SUPPORTED_DEVICES[i];
    const auto& setting = wanted.autocast[i];
    if (at::autocast::is_autocast_enabled(device) != setting.enabled) {
      at::autocast::set_autocast_enabled(device, setting.enabled);
    }
    if (at::autocast::get_autocast_dtype(device) != setting.dtype) {
      at::autocast::set_autocast_dtype(device, setting.dtype);
    }
  }
  at::autocast::set_autocast_cache_enabled(wanted.autocast_cache);
}

}  // namespace

Surroundings Surroundings::now() {
  Surroundings now;
  now.flags = Flags::now();
  for (size_t i = 0; i < now.autocast.size(); ++i) {
    const auto device = at::autocast::_AUTOCAST_SUPPORTED_DEVICES[i];
    now.autocast[i] = {
        at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
  }
  now.autocast_cache = at::autocast::is_autocast_cache_enabled();
  now.attention = attention_now();
  return now;
}

std::vector<SurroundingsDifference> differences(
    const Surroundings& first, const Surroundings& second) {
  std::vector<SurroundingsDifference> found;
  const auto differs = [&](const char* kind, const std::string& how) {
    found.push_back({kind, "the second run goes " + how});
  };
  if (first.flags.grad_mode != second.flags.grad_mode) {
    differs(
        "grad mode",
        first.flags.grad_mode ? "without gradients, the first had them"
                              : "with gradients, the first had none");
  }
  for (size_t i = 0; i < first.autocast.size(); ++i) {
    const auto device = c10::DeviceTypeName(at::autocast::_AUTOCAST_SUPPORTED_DEVICES[i], true);
    const auto &then = first.autocast[i], &now = second.autocast[i];
    if (then.enabled != now.enabled) {
      differs(
          "autocast",
          std::string(now.enabled ? "with" : "without") + " autocast on " + device +
              ", the first went " + (then.enabled ? "with" : "without"));
    } else if (then.enabled && then.dtype != now.dtype) {
      differs(
          "autocast dtype",
          std::string("with autocast to ") + c10::toString(now.dtype) + " on " + device +
              ", the first with " + c10::toString(then.dtype));
    }
  }
  auto flags = second.flags;
  flags.grad_mode = first.flags.grad_mode;
  if (!(flags == first.flags) || !(first.attention == second.attention)) {
    differs("settings", "under other settings than the first");
  }
  return found;
}

void set_surroundings(const Surroundings& wanted) {
  set_flags(wanted.flags);
  apply_autocast(wanted);
  apply(wanted.attention);
}

SurroundingsGuard::SurroundingsGuard(const Surroundings& wanted)
    : before_(Surroundings::now()),
      flags_(wanted.flags) {
  apply_autocast(wanted);
  apply(wanted.attention);
  at::autocast::increment_nesting();
}

SurroundingsGuard::~SurroundingsGuard() {
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();  // casts of weights, for a graph that is gone
  }
  apply(before_.attention);
  apply_autocast(before_);
}

}  // namespace retape::detail
