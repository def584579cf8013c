#include "check/examiner.h"

#include "check/unseen.h"
#include "recompute/errors.h"
#include "recompute/region.h"
#include "record/each_tensor.h"
#include "rerun/surroundings.h"

#include <retape/error.h>
#include <retape/verify.h>

#include <ATen/Context.h>
#include <ATen/Functions.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <sstream>

namespace retape::detail {

namespace {

std::string full_name(const OpInfo& op) {
  const auto& name = op.name;
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

uint64_t state_hash(at::Generator generator) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  const auto state = generator.get_state();
  return XXH3_64bits(state.const_data_ptr(), state.nbytes());
}

uint64_t bytes_hash(const c10::weak_intrusive_ptr<c10::StorageImpl>& storage) {
  const auto alive = storage.lock();
  return alive && alive->device_type() == c10::kCPU ? XXH3_64bits(alive->data(), alive->nbytes()) : 0;
}

const at::Tensor& tensor_of(const Input& input, c10::ArrayRef<c10::IValue> args, at::Tensor& held) {
  if (input.element < 0) {
    return args[input.arg].toTensor();
  }
  each_tensor(args[input.arg], [&](const at::Tensor& tensor, int element) {
    if (element == input.element) {
      held = tensor;
    }
  });
  return held;
}

std::string text_of(const c10::IValue& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

// By kind and by what they print: numbers, lists, strings, devices have no equality in common.
bool same_argument(const c10::IValue& then, const c10::IValue& now) {
  if (then.isDouble() && now.isDouble()) {
    const double a = then.toDouble(), b = now.toDouble();
    return std::memcmp(&a, &b, sizeof(a)) == 0;
  }
  return then.tagKind() == now.tagKind() && text_of(then) == text_of(now);
}

// What kind of difference it is, and how large.
std::pair<std::string, std::string> describe(const Seen& then, const at::Tensor& now, const Digest& digest) {
  if (!then.copy.defined()) {
    return {"values", then.digest.difference(digest)};
  }
  Unseen unseen;
  const auto difference = compare(then.copy, now);
  if (!difference) {
    return {"NaN payload", "a NaN has other bits"};
  }
  std::ostringstream text;
  text << difference->differing << " of " << difference->elements << " values differ";
  if (difference->ulps != 0) {
    text << " by up to " << difference->ulps << " ulp";
  }
  text << ", first at " << difference->first << ": " << difference->plain << " in forward, "
       << difference->recomputed << " in replay";
  const bool numbers_equal = then.copy.sizes() == now.sizes() && at::equal(then.copy, now);
  return {numbers_equal ? "sign of zero" : difference->ulps == 1 ? "one ulp" : "values", text.str()};
}

}  // namespace

// ---- forward --------------------------------------------------------------------------------

uint64_t Examiner::begin_tape() {
  std::lock_guard<std::mutex> lock(mutex_);
  return ++tapes_;
}

void Examiner::opened(std::shared_ptr<Region> region) {
  if (closely_) {
    std::lock_guard<std::mutex> lock(mutex_);
    regions_.push_back(std::move(region));
  }
}

std::shared_ptr<SeenCall> Examiner::called(std::string name) {
  auto call = std::make_shared<SeenCall>();
  call->name = std::move(name);
  std::lock_guard<std::mutex> lock(mutex_);
  calls_.push_back(call);
  return call;
}

std::unique_ptr<Seen> Examiner::seen(const at::Tensor& made) const {
  auto seen = std::make_unique<Seen>(Seen{View(made), Digest(made, /*bits=*/true), {}});
  if (!seen->digest.has_bits()) {
    return nullptr;
  }
  if (copies_) {
    Unseen unseen;
    seen->copy = made.detach().clone();
  }
  return seen;
}

std::unique_ptr<Witness> Examiner::witness(const OpInfo& op, const torch::jit::Stack& stack) const {
  if (!closely_) {
    return nullptr;
  }
  auto witness = std::make_unique<Witness>();
  witness->name = full_name(op);
  witness->flags = Flags::now();
  witness->source = source_of_this_op();
  const auto args = torch::jit::last(stack, op.arguments);
  for (const auto& arg : args) {
    bool tensors = arg.isTensorList() || arg.isOptionalTensorList();
    each_tensor(arg, [&](const at::Tensor& tensor, int) {
      tensors = true;
      if (tensor.defined()) {
        witness->inputs.emplace_back(tensor, /*bits=*/true);
      }
    });
    witness->args.push_back(tensors || arg.isGenerator() ? c10::IValue() : arg);
  }
  for (const auto index : op.scratch) {
    if (args[index].isTensor() && args[index].toTensor().defined()) {
      witness->scratch.push_back(args[index].toTensor().storage().getWeakStorageImpl());
    }
  }
  if (op.random) {
    witness->generator = Draw::generator_of(op, args);
    if (witness->generator.defined()) {
      witness->generator_state = state_hash(witness->generator);
    }
  }
  return witness;
}

void Examiner::enter(uint64_t tape, const Op& op, const Value& value) {
  if (closely_) {
    std::lock_guard<std::mutex> lock(mutex_);
    made_.emplace(value.seen->digest.hash(), Where{tape, op.order});
  }
}

// ---- replay ---------------------------------------------------------------------------------

void Examiner::before(const Op& op, const OpInfo& called, const torch::jit::Stack& stack) {
  const Witness& then = *op.witness;
  const c10::ArrayRef<c10::IValue> args(stack);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    misled_.erase(&op);
  }
  if (full_name(called) != then.name) {
    mislead(op);
    found(op, "other op", "expected " + then.name + ", got " + full_name(called));
    return;
  }
  for (size_t i = 0; i < args.size(); ++i) {
    if (!then.args[i].isNone() && !same_argument(then.args[i], args[i])) {
      const auto& name = called.handle.schema().arguments()[i].name();
      mislead(op);
      found(op, "argument", "argument \"" + name + "\": expected " + text_of(then.args[i]) + ", got " + text_of(args[i]));
    }
  }
  if (const auto now = Flags::now(); !(now == *op.flags)) {
    found(op, "settings", "it runs under other settings than in forward");
  }
  examine_generator(op, called, args);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const auto& input = op.inputs[i];
    if (input.role == Role::Read || input.role == Role::Write) {
      at::Tensor held;
      examine_input(op, i, tensor_of(input, args, held));
    }
  }
  std::vector<uint64_t> hashes;
  for (const auto& storage : then.scratch) {
    hashes.push_back(bytes_hash(storage));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  scratch_[&op] = std::move(hashes);
}

// What it makes will not be what it made in forward, and why is told already.
void Examiner::mislead(const Op& op) {
  std::lock_guard<std::mutex> lock(mutex_);
  misled_.insert(&op);
}

void Examiner::examine_generator(
    const Op& op, const OpInfo& called, c10::ArrayRef<c10::IValue> args) {
  const Witness& then = *op.witness;
  if (!then.generator.defined() || !op.draw) {
    return;
  }
  const auto used = Draw::generator_of(called, args);
  if (state_hash(used) == then.generator_state) {
    return;
  }
  mislead(op);
  const auto standard = at::globalContext().defaultGenerator(used.device());
  if (then.generator == standard) {
    found(op, "generator state", "the default generator is not in the state that it had in forward");
  } else if (used == standard) {
    found(op, "wrong generator", "expected the generator that it was given, got the default one");
  } else {
    found(op, "private generator", "the generator that it was given is not in the state that it had in forward");
  }
}

void Examiner::examine_input(const Op& op, size_t index, const at::Tensor& tensor) {
  const auto& input = op.inputs[index];
  const Digest& then = op.witness->inputs[index];
  const Digest now(tensor, /*bits=*/true);
  if (then == now) {
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    misled_.insert(&op);
    if (!wrong_.insert(now.hash()).second) {
      return;  // told already, where it was made
    }
  }
  std::ostringstream text;
  text << "argument \"" << op.info->handle.schema().arguments()[input.arg].name() << "\" ("
       << then.shape() << ")";
  const bool root = !input.value->recipe;
  const char* kind = "freed early";
  if (root && (input.value->superseded || input.value->home_moved())) {
    kind = "stale version";
    text << " is at a later version than the one that forward read";
  } else if (root) {
    kind = "changed unseen";
    text << " was changed since forward, and its version does not tell";
  } else if (const auto& made = input.value->seen;
             made && made->digest == Digest(made->view.on(tensor.storage()), /*bits=*/true)) {
    kind = "changed unseen";
    text << " is what its op made; in forward something past the dispatcher changed it before it was read";
  } else {
    text << " was changed after it had been replayed";
  }
  text << ": " << then.difference(now);
  found(op, kind, text.str());
}

void Examiner::writes_what_is_needed(const Op& op) {
  found(op, "overwritten", "it writes to a replayed value that somebody else still needs");
}

void Examiner::after(const Op& op) {
  std::vector<uint64_t> hashes;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    hashes = std::move(scratch_[&op]);
    scratch_.erase(&op);
  }
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (bytes_hash(op.witness->scratch[i]) != hashes[i]) {
      found(op, "written by replay", "running statistics that forward had moved already were moved again");
    }
  }
}

void Examiner::replayed(const Op& op, const Value& value, const c10::Storage& storage) {
  const Seen& then = *value.seen;
  if (storage.nbytes() != value.nbytes) {
    return;  // replay itself says so
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++values_checked_;
    if (closely_) {
      replayed_.push_back(storage.getWeakStorageImpl());
    }
  }
  const auto tensor = then.view.on(storage);
  const Digest now(tensor, /*bits=*/true);
  if (!(then.digest == now)) {
    if (closely_) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!wrong_.insert(now.hash()).second || misled_.count(&op) > 0) {
        return;  // comes of what was told already
      }
    }
    const auto [kind, text] = describe(then, tensor, now);
    found(op, kind, "what it makes (" + then.digest.shape() + ") is not what it made in forward: " + text);
  }
}

void Examiner::unpacked(
    uint64_t tape, const Value& value, const View& saved, const at::Tensor& tensor, bool again) {
  if (!closely_ || !value.seen || !value.recipe) {
    return;
  }
  const Op& op = *value.recipe;
  const Seen& then = *value.seen;
  if (tensor.scalar_type() != saved.dtype()) {
    found(op, "dtype", std::string("saved as ") + c10::toString(saved.dtype()) + ", came back as " + c10::toString(tensor.scalar_type()));
    return;
  }
  if (tensor.sizes() != saved.sizes() || tensor.strides() != saved.strides()) {
    std::ostringstream text;
    text << "saved with strides " << saved.strides() << ", came back with " << tensor.strides();
    found(op, "layout", text.str());
    return;
  }
  const Digest now(then.view.on(tensor.storage()), /*bits=*/true);
  if (then.digest == now) {
    return;
  }
  std::string kind = "freed early";
  std::string text = "its memory holds something else by the time that autograd reads it";
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (wrong_.count(now.hash()) > 0) {
      return;
    }
    if (const auto it = made_.find(now.hash()); it != made_.end()) {
      const bool here = it->second.tape == tape;
      kind = here ? "swapped" : "stale";
      text = here ? "autograd gets what op " + std::to_string(it->second.op) + " made, and saved what op " + std::to_string(op.order) + " made"
                  : "autograd gets what an earlier step had saved";
    } else if (again) {
      kind = "second unpack";
      text = "asked for once more, it is not what it was";
    }
  }
  found(op, kind, text + ": " + then.digest.difference(now));
}

// ---- rerun ----------------------------------------------------------------------------------

void Examiner::compare(const std::string& call, const Surroundings& then, const Surroundings& now) {
  const auto differs = [&](const char* kind, const std::string& what) {
    found({kind, "", call, "", "the second run goes " + what});
  };
  if (then.flags.grad_mode != now.flags.grad_mode) {
    differs("grad mode", then.flags.grad_mode ? "without gradients, the first had them" : "with gradients, the first had none");
  }
  for (size_t i = 0; i < then.autocast.size(); ++i) {
    const auto device = c10::DeviceTypeName(at::autocast::_AUTOCAST_SUPPORTED_DEVICES[i], true);
    if (then.autocast[i].enabled != now.autocast[i].enabled) {
      differs("autocast", std::string(now.autocast[i].enabled ? "with" : "without") + " autocast on " + device + ", the first went " + (then.autocast[i].enabled ? "with" : "without"));
    } else if (then.autocast[i].enabled && then.autocast[i].dtype != now.autocast[i].dtype) {
      differs("autocast dtype", std::string("with autocast to ") + c10::toString(now.autocast[i].dtype) + " on " + device + ", the first with " + c10::toString(then.autocast[i].dtype));
    }
  }
  auto flags = now.flags;
  flags.grad_mode = then.flags.grad_mode;
  if (!(flags == then.flags) || !(then.attention == now.attention)) {
    differs("settings", "under other settings than the first");
  }
}

// ---- what was found -------------------------------------------------------------------------

void Examiner::found(const Op& op, std::string kind, const std::string& what) {
  const auto name = full_name(*op.info);
  if (closely_) {
    found({std::move(kind), name, op.region->name, op.witness ? op.witness->source : "", what});
    return;
  }
  throw ReplayMismatch(  // under the lock, see errors.h
      "[recompute] " + where(op.region) + name + ": " + what +
      ". Something past the dispatcher has changed what it reads (a kernel of its own, .data, numpy). "
      "Fix: Method::Rerun for that code, or keep the value: Policy::keep_ops({\"" + op.info->name.name +
      "\"}).");
}

void Examiner::found(Finding finding) {
  std::lock_guard<std::mutex> lock(mutex_);
  findings_.push_back(std::move(finding));
}

std::vector<Finding> Examiner::findings() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return findings_;
}

std::vector<SeenRegion> Examiner::regions() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<SeenRegion> seen;
  for (const auto& region : regions_) {
    const auto stats = region->stats();
    seen.push_back({region->name, stats.ops_recorded, stats.ops_replayed, 0});
  }
  for (const auto& call : calls_) {
    seen.push_back({call->name, 0, 0, call->reruns.load()});
  }
  return seen;
}

uint64_t Examiner::values_checked() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return values_checked_;
}

uint64_t Examiner::bytes_held() const {
  std::lock_guard<std::mutex> lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& storage : replayed_) {
    if (const auto alive = storage.lock()) {
      bytes += alive->nbytes();
    }
  }
  return bytes;
}

}  // namespace retape::detail
