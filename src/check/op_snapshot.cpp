#include "check/op_snapshot.h"

#include "tape/each_tensor.h"
#include "tape/rng_snapshot.h"
#include "tape/value.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <mutex>

namespace retape::detail {

uint64_t state_hash(at::Generator generator) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  const auto state = generator.get_state();
  return XXH3_64bits(state.const_data_ptr(), state.nbytes());
}

const ValueSnapshot* snapshot(const Value& value) {
  return static_cast<const ValueSnapshot*>(value.note.get());
}

const OpSnapshot* snapshot(const Op& op) {
  return static_cast<const OpSnapshot*>(op.note.get());
}

std::unique_ptr<OpSnapshot> snapshot_of(const OpInfo& op, const torch::jit::Stack& stack) {
  auto taken = std::make_unique<OpSnapshot>();
  taken->name = c10::toString(op.name);
  taken->flags = Flags::now();
  taken->source = source_of_this_op();
  const auto args = torch::jit::last(stack, op.arguments);
  for (const auto& arg : args) {
    bool tensors = arg.isTensorList() || arg.isOptionalTensorList();
    each_tensor(arg, [&](const at::Tensor& tensor, int) {
      tensors = true;
      if (tensor.defined()) {
        taken->inputs.emplace_back(tensor, /*bits=*/true);
      }
    });
    taken->args.push_back(tensors || arg.isGenerator() ? c10::IValue() : arg);
  }
  for (const auto index : op.scratch) {
    if (args[index].isTensor() && args[index].toTensor().defined()) {
      taken->scratch.push_back(args[index].toTensor().storage().getWeakStorageImpl());
    }
  }
  if (op.random) {
    taken->generator = Draw::generator_of(op, args);
    if (taken->generator.defined()) {
      taken->generator_state = state_hash(taken->generator);
    }
  }
  return taken;
}

}  // namespace retape::detail
