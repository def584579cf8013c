#include "tape/op_info.h"

#include "tape/op_lists.h"
#include "tape/replayable.h"

#include <retape/binding.h>

#include <c10/util/flat_hash_map.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace retape::detail {

using c10::DispatchKey;

namespace {

template <typename List, typename Item>
bool listed(const List& list, const Item& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

std::atomic<AfterOpSource> after_op_source{nullptr};

bool has_tensor(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) {
    return true;
  }
  for (const auto& inner : type->containedTypes()) {
    if (has_tensor(inner)) {
      return true;
    }
  }
  return false;
}

constexpr DispatchKey kBackends[] = {
    DispatchKey::CPU,
    DispatchKey::CUDA,
    DispatchKey::MPS,
    DispatchKey::XPU,
    DispatchKey::HPU,
    DispatchKey::PrivateUse1};

constexpr DispatchKey kAutogradKeys[] = {
    DispatchKey::Autograd,
    DispatchKey::AutogradCPU,
    DispatchKey::AutogradCUDA,
    DispatchKey::AutogradMPS,
    DispatchKey::AutogradXPU,
    DispatchKey::AutogradHPU,
    DispatchKey::AutogradPrivateUse1};

template <typename Keys>
bool has_kernel(const c10::OperatorHandle& op, const Keys& keys) {
  return std::any_of(std::begin(keys), std::end(keys), [&](DispatchKey key) {
    return op.hasKernelForDispatchKey(key);
  });
}

// Tensor, Tensor?, Tensor[], Tensor?[]: what a recipe knows how to put back. Not Tensor[][].
bool storable(const c10::TypePtr& type, bool in_list = false) {
  using Kind = c10::TypeKind;
  switch (type->kind()) {
    case Kind::TensorType:
      return true;
    case Kind::OptionalType:
      return storable(type->containedType(0), in_list);
    case Kind::ListType:
      return !(in_list && has_tensor(type)) && storable(type->containedType(0), /*in_list=*/true);
    case Kind::GeneratorType:
      return !in_list;  // replay restores the state of one
    case Kind::ClassType:
    case Kind::StorageType:
    case Kind::StreamObjType:
    case Kind::AnyType:
    case Kind::FutureType:
    case Kind::RRefType:
    case Kind::PyObjectType:
      return false;
    default:
      return !has_tensor(type);
  }
}

bool is_generator(const c10::TypePtr& type) {
  if (const auto optional = type->cast<c10::OptionalType>()) {
    return is_generator(optional->getElementType());
  }
  return type->kind() == c10::TypeKind::GeneratorType;
}

void read_schema(OpInfo& info, const c10::FunctionSchema& schema) {
  info.arguments = schema.arguments().size();
  info.returns = schema.returns().size();
  bool aliases = false;
  for (const auto& ret : schema.returns()) {
    info.returns_tensors |= has_tensor(ret.type());
    aliases |= ret.alias_info() != nullptr;
  }
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& arg = schema.arguments()[i];
    if (arg.alias_info() != nullptr && arg.alias_info()->isWrite()) {
      info.writes.push_back(static_cast<uint16_t>(i));
    }
    if (is_generator(arg.type())) {
      info.several_generators = info.generator_arg >= 0;
      info.generator_arg = static_cast<int>(i);
    }
    if (arg.name() == "training" || arg.name() == "train") {
      info.training_arg = static_cast<int>(i);
    }
  }
  info.is_view = aliases && info.writes.empty();
}

OpInfo describe(const c10::OperatorHandle& op) {
  OpInfo info{op, op.operator_name()};
  const std::string& name = info.name.name;
  const auto colon = name.find("::");
  const std::string ns = name.substr(0, colon);
  const bool trusted = listed(lists::kTrustedNamespaces, ns);

  if (!op.hasSchema()) {
    return info;
  }
  read_schema(info, op.schema());

  info.is_custom = !trusted;
  info.has_own_autograd = !trusted && has_kernel(op, kAutogradKeys);
  info.is_composite = op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
      !has_kernel(op, kBackends);
  info.passes_through = info.has_own_autograd || info.is_composite;
  for (auto key :
       {DispatchKey::AutocastCPU,
        DispatchKey::AutocastCUDA,
        DispatchKey::AutocastXPU,
        DispatchKey::AutocastMPS,
        DispatchKey::AutocastHPU,
        DispatchKey::AutocastPrivateUse1}) {
    if (op.hasKernelForDispatchKey(key)) {
      info.autocast = info.autocast.add(key);
    }
  }

  if (const auto source = after_op_source.load()) {
    info.after_op = source(info.name);
  }
  info.random = op.hasTag(at::Tag::nondeterministic_seeded);
  info.pointwise = op.hasTag(at::Tag::pointwise);
  info.cheap = info.pointwise || op.hasTag(at::Tag::reduction) || listed(lists::kCheap, name);
  info.uninitialized = listed(lists::kUninitialized, name);
  const bool overwrites = listed(lists::kOverwrite, name);
  for (const auto i : info.writes) {
    // An op with out= arguments may write others too, and those it updates.
    const bool is_out = op.hasTag(at::Tag::out) && op.schema().arguments()[i].is_out();
    if (is_out && info.result_arg < 0) {
      info.result_arg = i;
    }
    if (overwrites || (is_out && !listed(lists::kOutUpdated, name))) {
      info.overwrites.push_back(i);
    }
  }
  info.routes = listed(lists::kRouting, name);
  info.on_cpu_only = listed(lists::kUnorderedOffCpu, name);
  info.picks = listed(lists::kPicks, name);
  for (const auto& hidden : lists::kHiddenWrites) {
    if (hidden.op == name) {
      info.scratch.assign(hidden.arguments.begin(), hidden.arguments.end());
      info.writes.erase(
          std::remove_if(
              info.writes.begin(),
              info.writes.end(),
              [&](uint16_t i) { return listed(hidden.arguments, i); }),
          info.writes.end());
    }
  }
  if (op.hasTag(at::Tag::inplace_view) && listed(lists::kMetadataOnly, name)) {
    info.writes.clear();
    info.is_view = true;
  }
  info.lifts = info.name.name == "aten::lift_fresh";
  info.rebinds = op.hasTag(at::Tag::inplace_view) && !info.is_view;

  const bool effectful = (op.hasTag(at::Tag::dynamic_output_shape) && !info.picks) ||
      op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::inplace_view) ||
      op.hasTag(at::Tag::maybe_aliasing_or_mutating) || listed(lists::kHiddenState, name) ||
      listed(lists::kPartlyUnwritten, name);
  // No tag says that an op is pure. One that its user calls replayable may still draw random
  // numbers.
  const bool opted_in = !trusted && is_replayable(info.name);
  const bool known = trusted || opted_in;
  info.random |= opted_in;
  const auto& args = op.schema().arguments();
  const bool replaceable = std::all_of(
      args.begin(), args.end(), [](const c10::Argument& arg) { return storable(arg.type()); });
  // An in-place op without a result (foreach) still makes new versions of what it writes.
  info.has_recipe = (info.returns_tensors || !info.writes.empty()) && known && !effectful &&
      !info.several_generators && !info.uninitialized && replaceable;
  return info;
}

// Shared by all threads. What is known of an operator holds until one of that name is registered or
// deregistered; descriptions stay, since ops on live tapes point at them.
struct Registry {
  std::mutex mutex;
  std::deque<OpInfo> all;
  std::unordered_map<c10::OperatorName, const OpInfo*> current;
  std::atomic<uint64_t> changes{0};
  const c10::RegistrationHandleRAII listening;  // the last: it is told of every operator at once

  Registry()
      : listening(
            c10::Dispatcher::singleton().addRegistrationListener(
                std::make_unique<Listener>(*this))) {}

  void forget(const c10::OperatorName& op, bool gone) {
    std::lock_guard<std::mutex> lock(mutex);
    if (const auto it = current.find(op); it != current.end()) {
      it->second->gone->store(gone);
      current.erase(it);
    }
    changes.fetch_add(1, std::memory_order_release);
  }

  void forget_all() {
    std::lock_guard<std::mutex> lock(mutex);
    current.clear();
    changes.fetch_add(1, std::memory_order_release);
  }

  struct Listener final : c10::OpRegistrationListener {
    explicit Listener(Registry& registry) : registry(registry) {}
    void onOperatorRegistered(const c10::OperatorHandle& op) override {
      registry.forget(op.operator_name(), /*gone=*/false);
    }
    void onOperatorDeregistered(const c10::OperatorHandle& op) override {
      registry.forget(op.operator_name(), /*gone=*/true);
    }
    Registry& registry;
  };
};

Registry& registry() {
  static auto* instance = new Registry;  // outlives every thread's last op
  return *instance;
}

}  // namespace

const OpInfo& op_info(const c10::OperatorHandle& handle) {
  thread_local ska::flat_hash_map<const void*, const OpInfo*> cache;
  thread_local uint64_t changes = 0;  // that the cache knows of
  auto& shared = registry();
  if (const auto now = shared.changes.load(std::memory_order_acquire); changes != now) {
    cache.clear();
    changes = now;
  }
  const void* key = &handle.operator_name();
  if (auto it = cache.find(key); it != cache.end()) {
    return *it->second;
  }
  std::lock_guard<std::mutex> lock(shared.mutex);
  auto& info = shared.current[handle.operator_name()];
  if (info == nullptr) {
    info = &shared.all.emplace_back(describe(handle));
  }
  cache[key] = info;
  return *info;
}

void set_after_op_source(AfterOpSource source) {
  after_op_source.store(source);
  forget_op_infos();
}

void forget_op_infos() {
  registry().forget_all();
}

static bool is_evaluation(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  return op.training_arg >= 0 && args[op.training_arg].isBool() && !args[op.training_arg].toBool();
}

Effect effect_on(const OpInfo& op, c10::ArrayRef<c10::IValue> args, size_t argument) {
  const bool evaluates = is_evaluation(op, args);
  if (listed(op.scratch, argument)) {
    return evaluates ? Effect::Reads : Effect::UpdatesInForward;
  }
  if (!listed(op.writes, argument)) {
    return Effect::Reads;
  }
  const bool surely_written = !evaluates || static_cast<int>(argument) == op.result_arg;
  return surely_written && listed(op.overwrites, argument) ? Effect::Overwrites : Effect::Updates;
}

int left_unwritten(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  return is_evaluation(op, args) && op.writes.size() == 1 ? op.writes[0] : -1;
}

}  // namespace retape::detail

retape::CallEffects retape::effects_of_call(
    const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments) {
  const auto& info = detail::op_info(op);
  CallEffects effects;
  effects.recipe = info.has_recipe;
  effects.uninitialized = info.uninitialized;
  for (size_t i = 0; i < info.arguments; ++i) {
    const auto effect = detail::effect_on(info, arguments, i);
    if (effect != detail::Effect::Reads) {
      effects.writes.push_back(i);
    }
    if (effect == detail::Effect::Overwrites) {
      effects.overwrites.push_back(i);
    }
  }
  return effects;
}
