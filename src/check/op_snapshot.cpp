#include "check/op_snapshot.h"

#include "tape/each_tensor.h"
#include "tape/rng_snapshot.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <mutex>

namespace retape::detail {

uint64_t state_hash(at::Generator generator) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  const auto state = generator.get_state();
  return XXH3_64bits(state.const_data_ptr(), state.nbytes());
}

std::unique_ptr<Witness> witness_of(const OpInfo& op, const torch::jit::Stack& stack) {
  auto witness = std::make_unique<Witness>();
  witness->name = c10::toString(op.name);
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

}  // namespace retape::detail
