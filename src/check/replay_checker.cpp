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

// One tape, by its number.
class ReplayChecker::OfTape final : public TapeObserver {
 public:
  OfTape(std::shared_ptr<ReplayChecker> all, uint64_t number)
      : all_(std::move(all)),
        number_(number) {}

  void region_opened(const std::shared_ptr<Region>& region) override { all_->opened(region); }

  std::unique_ptr<Note> before_op(const OpInfo& op, const torch::jit::Stack& stack) override {
    return all_->closely_ ? snapshot_of(op, stack) : nullptr;
  }

  std::unique_ptr<Note> made(const at::Tensor& result) override {
    return all_->snapshot_of_result(View(result), result);
  }

  // All that was seen of the version before, not of the storage: a reduction's is larger than its
  // result, and the rest of it is garbage.
  std::unique_ptr<Note> wrote(
      const c10::Storage& storage, const View& seen, const Note* before) override {
    const View& view = before != nullptr ? static_cast<const ValueSnapshot*>(before)->view : seen;
    return all_->snapshot_of_result(view, view.on(storage));
  }

  void entered(const Op& op, const Value& value) override {
    if (snapshot(value) != nullptr) {
      all_->enter(number_, op, value);
    }
  }

  void before_replay(ReplayCall& call) override {
    if (snapshot(call.op) != nullptr) {
      all_->examine_writes(call);
      all_->before(call);
    }
  }

  void after_replay(const Op& op, c10::ArrayRef<at::Tensor>) override {
    if (snapshot(op) != nullptr) {
      all_->after(op);
    }
  }

  void replayed(
      Tape& tape, const Op& op, const Value& value, const c10::Storage& storage) override {
    if (snapshot(value) != nullptr) {
      all_->replayed(tape, op, value, storage);
    }
  }

  at::Tensor unpacked(
      const Tape&, const Value& value, const View& saved, at::Tensor tensor, bool again) override {
    all_->unpacked(number_, value, saved, tensor, again);
    return tensor;
  }

 private:
  const std::shared_ptr<ReplayChecker> all_;
  const uint64_t number_;
};

std::shared_ptr<TapeObserver> ReplayChecker::observer_of_new_tape(
    std::shared_ptr<ReplayChecker> self) {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::make_shared<OfTape>(std::move(self), ++tapes_);
}

std::shared_ptr<TapeObserver> checker_of_new_tape() {
  auto checker = ReplayChecker::now();
  return checker ? checker->observer_of_new_tape(checker) : nullptr;
}

void ReplayChecker::opened(std::shared_ptr<Region> region) {
  if (closely_) {
    std::lock_guard<std::mutex> lock(mutex_);
    regions_.push_back(std::move(region));
  }
}

std::shared_ptr<SeenCall> ReplayChecker::called(std::string name) {
  auto call = std::make_shared<SeenCall>();
  call->name = std::move(name);
  std::lock_guard<std::mutex> lock(mutex_);
  calls_.push_back(call);
  return call;
}

std::unique_ptr<ValueSnapshot> ReplayChecker::snapshot_of_result(
    View view, const at::Tensor& made) const {
  auto taken = std::make_unique<ValueSnapshot>(std::move(view), Digest(made, /*bits=*/true));
  if (!taken->digest.has_bits()) {
    return nullptr;
  }
  if (copies_) {
    UntrackedGuard untracked;
    taken->copy = made.detach().clone();
  }
  return taken;
}

void ReplayChecker::enter(uint64_t tape, const Op& op, const Value& value) {
  if (closely_) {
    std::lock_guard<std::mutex> lock(mutex_);
    made_.emplace(snapshot(value)->digest.hash(), Where{tape, op.order});
  }
}

// ---- replay

// No other use of a value may need what the op is about to write.
void ReplayChecker::examine_writes(const ReplayCall& call) {
  for (size_t i = 0; i < call.op.inputs.size(); ++i) {
    const auto& input = call.op.inputs[i];
    if (input.role == Role::Write && input.value->hold != Hold::None &&
        input.value->data.is_alias_of(call.inputs[i])) {
      found(call.op, "overwritten", "it writes to a replayed value that somebody else still needs");
    }
  }
}

void ReplayChecker::before(const ReplayCall& call) {
  const Op& op = call.op;
  const OpInfo& called = *call.called;
  const OpSnapshot& then = *snapshot(op);
  const c10::ArrayRef<c10::IValue> args(call.stack);
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
void ReplayChecker::mislead(const Op& op) {
  std::lock_guard<std::mutex> lock(mutex_);
  misled_.insert(&op);
}

void ReplayChecker::examine_generator(
    const Op& op, const OpInfo& called, c10::ArrayRef<c10::IValue> args) {
  const OpSnapshot& then = *snapshot(op);
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

void ReplayChecker::examine_input(const Op& op, size_t index, const at::Tensor& tensor) {
  const Digest now(tensor, /*bits=*/true);
  if (snapshot(op)->inputs[index] == now) {
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
bool ReplayChecker::is_known_to_be_wrong(
    const Value& value, const at::Tensor& tensor, const Digest& now) {
  bool known = !wrong_.insert(now.hash()).second;
  if (const auto* made = snapshot(value)) {
    const Digest whole(made->view.on(tensor.storage()), /*bits=*/true);
    if (!(made->digest == whole) && whole.hash() != now.hash()) {
      known = !wrong_.insert(whole.hash()).second || known;
    }
  }
  return known;
}

void ReplayChecker::after(const Op& op) {
  std::vector<uint64_t> hashes;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    hashes = std::move(scratch_[&op]);
    scratch_.erase(&op);
  }
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (bytes_hash(snapshot(op)->scratch[i]) != hashes[i]) {
      found(
          op,
          "written by replay",
          "running statistics that forward had moved already were moved again");
    }
  }
}

void ReplayChecker::replayed(
    Tape& tape, const Op& op, const Value& value, const c10::Storage& storage) {
  const ValueSnapshot& then = *snapshot(value);
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

void ReplayChecker::unpacked(
    uint64_t tape, const Value& value, const View& saved, const at::Tensor& tensor, bool again) {
  if (!closely_ || value.note == nullptr || !value.recipe) {
    return;
  }
  const Op& op = *value.recipe;
  const ValueSnapshot& then = *snapshot(value);
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

void ReplayChecker::found(const Op& op, std::string kind, const std::string& what) {
  const auto name = c10::toString(op.info->name);
  if (closely_) {
    found(
        {std::move(kind),
         name,
         op.region->name,
         snapshot(op) != nullptr ? snapshot(op)->source : "",
         what});
    return;
  }
  throw ReplayMismatch(  // under the lock, see errors.h
      "[recompute] " + where(op.region.get()) + name + ": " + what +
      ". Something past the dispatcher has changed what it reads (a kernel of its own, .data, numpy). "
      "Fix: Method::Rerun for that code, or keep the value: Policy::keep_ops({\"" + op.info->name.name +
      "\"}).");
}

void ReplayChecker::found(Finding finding) {
  std::lock_guard<std::mutex> lock(mutex_);
  findings_.push_back(std::move(finding));
}

std::vector<Finding> ReplayChecker::findings() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return findings_;
}

std::vector<SeenRegion> ReplayChecker::regions() const {
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

uint64_t ReplayChecker::values_checked() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return values_checked_;
}

uint64_t ReplayChecker::bytes_held() const {
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
