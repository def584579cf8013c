#include "check/replay_checker.h"

#include "check/describe_difference.h"
#include "tape/each_tensor.h"
#include "tape/errors.h"
#include "tape/region.h"
#include "torch/untracked_guard.h"

#include <retape/error.h>

#include <ATen/Context.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <sstream>

namespace retape::detail {

namespace {

uint64_t bytes_hash(const c10::weak_intrusive_ptr<c10::StorageImpl>& storage) {
  const auto alive = storage.lock();
  return alive && alive->device_type() == c10::kCPU ? XXH3_64bits(alive->data(), alive->nbytes())
                                                    : 0;
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

}  // namespace

// ---- forward

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
  return closely_ ? witness_of(op, stack) : nullptr;
}

void Examiner::enter(uint64_t tape, const Op& op, const Value& value) {
  if (closely_) {
    std::lock_guard<std::mutex> lock(mutex_);
    made_.emplace(value.seen->digest.hash(), Where{tape, op.order});
  }
}

// ---- replay

void Examiner::before(const Op& op, const OpInfo& called, const torch::jit::Stack& stack) {
  const Witness& then = *op.witness;
  const c10::ArrayRef<c10::IValue> args(stack);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    misled_.erase(&op);
  }
  if (const auto name = c10::toString(called.name); name != then.name) {
    mislead(op);
    found(op, "other op", "expected " + then.name + ", got " + name);
    return;
  }
  for (size_t i = 0; i < args.size(); ++i) {
    if (!then.args[i].isNone() && !same_argument(then.args[i], args[i])) {
      const auto& name = called.handle.schema().arguments()[i].name();
      mislead(op);
      found(
          op,
          "argument",
          "argument \"" + name + "\": expected " + text_of(then.args[i]) + ", got " +
              text_of(args[i]));
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
    found(
        op, "generator state", "the default generator is not in the state that it had in forward");
  } else if (used == standard) {
    found(op, "wrong generator", "expected the generator that it was given, got the default one");
  } else {
    found(
        op,
        "private generator",
        "the generator that it was given is not in the state that it had in forward");
  }
}

void Examiner::examine_input(const Op& op, size_t index, const at::Tensor& tensor) {
  const Digest now(tensor, /*bits=*/true);
  if (op.witness->inputs[index] == now) {
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    misled_.insert(&op);
    if (is_known_to_be_wrong(*op.inputs[index].value, tensor, now)) {
      return;  // told already, where it was made
    }
  }
  auto [kind, what] = describe_input(op, index, tensor);
  found(op, std::move(kind), what);
}

// Ops read a value through views of their own: as its op made it, it may be known.
bool Examiner::is_known_to_be_wrong(
    const Value& value, const at::Tensor& tensor, const Digest& now) {
  bool known = !wrong_.insert(now.hash()).second;
  if (const auto& made = value.seen) {
    const Digest whole(made->view.on(tensor.storage()), /*bits=*/true);
    if (!(made->digest == whole) && whole.hash() != now.hash()) {
      known = !wrong_.insert(whole.hash()).second || known;
    }
  }
  return known;
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
      found(
          op,
          "written by replay",
          "running statistics that forward had moved already were moved again");
    }
  }
}

void Examiner::replayed(Tape& tape, const Op& op, const Value& value, const c10::Storage& storage) {
  const Seen& then = *value.seen;
  if (storage.nbytes() != value.nbytes) {
    return;  // replay itself says so
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++values_checked_;
    if (closely_) {
      const auto graph = c10::intrusive_ptr<Tape>::reclaim_copy(&tape);
      replayed_.push_back({storage.getWeakStorageImpl(), c10::weak_intrusive_ptr<Tape>(graph)});
    }
  }
  const auto tensor = then.view.on(storage);
  const Digest now(tensor, /*bits=*/true);
  if (!(then.digest == now)) {
    if (closely_) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!wrong_.insert(now.hash()).second || misled_.contains(&op)) {
        return;  // comes of what was told already
      }
    }
    auto [kind, what] = describe_result(then, tensor, now);
    found(op, std::move(kind), what);
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
    found(
        op,
        "dtype",
        std::string("saved as ") + c10::toString(saved.dtype()) + ", came back as " +
            c10::toString(tensor.scalar_type()));
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
    if (wrong_.contains(now.hash())) {
      return;
    }
    if (const auto it = made_.find(now.hash()); it != made_.end()) {
      const bool here = it->second.tape == tape;
      kind = here ? "swapped" : "stale";
      text = here ? "autograd gets what op " + std::to_string(it->second.op) +
              " made, and saved what op " + std::to_string(op.order) + " made"
                  : "autograd gets what an earlier step had saved";
    } else if (again) {
      kind = "second unpack";
      text = "asked for once more, it is not what it was";
    }
  }
  found(op, kind, text + ": " + then.digest.difference(now));
}

// ---- what was found

void Examiner::found(const Op& op, std::string kind, const std::string& what) {
  const auto name = c10::toString(op.info->name);
  if (closely_) {
    found({std::move(kind), name, op.region->name, op.witness ? op.witness->source : "", what});
    return;
  }
  throw ReplayMismatch(  // under the lock, see errors.h
      "[recompute] " + where(op.region.get()) + name + ": " + what +
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
    seen.push_back(
        {region->name, stats.ops_recorded, stats.ops_replayed, 0, region->kept_ops.all()});
  }
  for (const auto& call : calls_) {
    seen.push_back({call->name, 0, 0, call->reruns.load(), {}});
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
  for (const auto& replayed : replayed_) {
    if (const auto alive = replayed.storage.lock(); alive && replayed.tape.expired()) {
      bytes += alive->nbytes();
    }
  }
  return bytes;
}

}  // namespace retape::detail
