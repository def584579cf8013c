#include "check/fault_hooks.h"

#ifdef RETAPE_FAULTS

#include "residency/bytes.h"
#include "torch/untracked_guard.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

namespace retape::detail {

namespace {

// What faults put aside, to hand it out in the wrong place.
struct Aside {
  std::mutex mutex;
  std::vector<c10::Storage> leaked;
  c10::intrusive_ptr<const Tape> tape;  // of `last` and `first`
  const Value* last_value = nullptr;
  c10::Storage last;
  std::map<std::pair<uint64_t, uint32_t>, c10::Storage> first;  // by op and result
};

Aside& aside() {
  static auto* instance = new Aside;
  return *instance;
}

void miss_argument(const Op& op, torch::jit::Stack& stack) {
  const auto& schema = op.info->handle.schema().arguments();
  for (size_t i = stack.size(); i-- > 0;) {
    const auto& standard = schema[i].default_value();
    const bool number = stack[i].isDouble() || stack[i].isInt() || stack[i].isBool();
    if (number && standard && standard->isScalar() &&
        standard->toScalar().toDouble() != stack[i].toScalar().toDouble()) {
      stack[i] = *standard;
      hit();
      return;
    }
  }
}

void mutate_root(const Op& op) {
  for (const auto& input : op.inputs) {
    if (input.role == Role::Read && input.value && !input.value->recipe && input.value->data &&
        input.value->data.nbytes() > 0 && input.value->data.device_type() == c10::kCPU) {
      static_cast<char*>(input.value->data.mutable_data())[0] ^= 1;
      hit();
      return;
    }
  }
}

// Of a root that was overwritten, because it was not copied first (record/recorder.cpp).
bool reads_a_later_version(const Op& op) {
  return std::any_of(op.inputs.begin(), op.inputs.end(), [](const Input& input) {
    const auto* value = input.value.get();
    return value != nullptr && !value->recipe && value->copied && value->home.lock() &&
        value->data.unsafeGetStorageImpl() == value->home.lock().get();
  });
}

void use_generator(const Op& op, torch::jit::Stack& stack) {
  const int arg = op.info->generator_arg;
  const bool is_private = op.draw && arg >= 0 &&
      !(op.draw->source() == at::globalContext().defaultGenerator(op.draw->source().device()));
  if (!is_private) {
    return;
  }
  if (injected(Fault::WrongGenerator)) {
    stack[arg] = c10::IValue();
    hit();
  } else if (injected(Fault::PrivateGenerator)) {
    stack[arg] = op.draw->source();
    hit();
  }
}

// Changes the first float that `change` accepts.
template <typename Change>
void change_a_float(c10::ArrayRef<at::Tensor> outputs, Change change) {
  for (const auto& tensor : outputs) {
    if (!tensor.defined() || tensor.scalar_type() != c10::kFloat || !tensor.is_contiguous()) {
      continue;
    }
    auto* data = static_cast<uint32_t*>(tensor.mutable_data_ptr());
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      if (change(data[i])) {
        hit();
        return;
      }
    }
  }
}

float as_float(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Of the same size, with other bytes.
bool differs(const c10::Storage& a, const c10::Storage& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.data(), b.data(), a.nbytes()) != 0;
}

at::Tensor in_columns(const at::Tensor& tensor) {
  auto strides = tensor.strides().vec();
  int64_t stride = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    strides[i] = stride;
    stride *= tensor.size(i);
  }
  return tensor.as_strided(tensor.sizes(), strides, tensor.storage_offset());
}

void change_arguments(const Op& op, torch::jit::Stack& stack) {
  if (injected(Fault::MissingArgument)) {
    miss_argument(op, stack);
  } else if (injected(Fault::DataMutated)) {
    mutate_root(op);
  } else if (injected(Fault::StaleVersion) && reads_a_later_version(op)) {
    hit();
  } else if (injected(Fault::GeneratorNotRestored) && op.draw) {
    hit();  // nobody restores it
  } else if (injected(Fault::WrongGenerator) || injected(Fault::PrivateGenerator)) {
    use_generator(op, stack);
  }
}

const OpInfo& other_op(const OpInfo& op) {
  if (injected(Fault::OtherOp)) {
    for (const auto& [right, wrong] :
         {std::pair("aten::silu", "aten::relu"),
          std::pair("aten::sin", "aten::cos"),
          std::pair("aten::relu", "aten::silu"),
          std::pair("aten::tanh", "aten::sigmoid")}) {
      if (op.name.name == right && op.name.overload_name.empty()) {
        hit();
        return op_info(c10::Dispatcher::singleton().findSchemaOrThrow(wrong, ""));
      }
    }
  }
  return op;
}

void change_results(c10::ArrayRef<at::Tensor> outputs) {
  if (injected(Fault::OneUlp)) {
    change_a_float(outputs, [](uint32_t& bits) {
      const bool can = std::isnormal(as_float(bits));
      bits ^= can ? 1 : 0;
      return can;
    });
  } else if (injected(Fault::NanPayload)) {
    change_a_float(outputs, [](uint32_t& bits) {
      const bool can = std::isnan(as_float(bits));
      bits ^= can ? 1 : 0;
      return can;
    });
  } else if (injected(Fault::SignOfZero)) {
    change_a_float(outputs, [](uint32_t& bits) {
      const bool can = bits == 0;
      bits |= can ? 0x80000000U : 0;
      return can;
    });
  }
}

void break_held(const Value& value) {
  if (injected(Fault::FreedEarly) && value.tokens > 0) {
    std::memset(value.data.mutable_data(), 0x3d, value.data.nbytes());
    hit();
  } else if (injected(Fault::Leak)) {
    std::lock_guard<std::mutex> lock(aside().mutex);
    aside().leaked.push_back(value.data);
    hit();
  }
}

at::Tensor wrong_tensor(
    const Tape& tape, const Value& value, const View& view, at::Tensor tensor, bool again) {
  UntrackedGuard untracked;
  auto& side = aside();
  if (injected(Fault::Layout) && tensor.dim() > 1 && tensor.is_contiguous() &&
      tensor.numel() > tensor.size(-1)) {
    hit();
    return in_columns(tensor);
  }
  if (injected(Fault::DtypeWidened) && tensor.scalar_type() == c10::kFloat) {
    hit();
    return tensor.to(c10::kDouble);
  }
  if (injected(Fault::SecondUnpack) && again) {
    hit();
    return at::zeros_like(tensor);
  }
  if (injected(Fault::SwappedTensors)) {
    std::lock_guard<std::mutex> lock(side.mutex);
    const bool swap = side.tape.get() == &tape && side.last_value != &value && side.last &&
        differs(side.last, tensor.storage());
    if (swap) {
      hit();
      return view.on(side.last);
    }
    side.tape = c10::intrusive_ptr<const Tape>::reclaim_copy(&tape);
    side.last_value = &value;
    side.last = tensor.storage();
  }
  if (injected(Fault::StaleFrame) && value.recipe) {
    std::lock_guard<std::mutex> lock(side.mutex);
    if (!side.tape) {
      side.tape = c10::intrusive_ptr<const Tape>::reclaim_copy(&tape);
    }
    auto& first = side.first[{value.recipe->order, value.slot}];
    if (side.tape.get() == &tape) {
      first = copy_of(tensor.storage());
    } else if (first && differs(first, tensor.storage())) {
      hit();
      return view.on(first);
    }
  }
  return tensor;
}

class FaultyTape final : public TapeObserver {
 public:
  void before_replay(ReplayCall& call) override {
    change_arguments(call.op, call.stack);
    call.called = &other_op(*call.called);
  }
  void after_replay(const Op&, c10::ArrayRef<at::Tensor> results) override {
    change_results(results);
  }
  void held(const Value& value) override { break_held(value); }
  at::Tensor unpacked(
      const Tape& tape,
      const Value& value,
      const View& saved,
      at::Tensor tensor,
      bool again) override {
    return wrong_tensor(tape, value, saved, std::move(tensor), again);
  }
};

}  // namespace

std::shared_ptr<TapeObserver> faults_of_new_tape() {
  return injected(Fault::None) ? nullptr : std::make_shared<FaultyTape>();
}

void forget_what_faults_put_aside() {
  auto& side = aside();
  std::lock_guard<std::mutex> lock(side.mutex);
  side.leaked.clear();
  side.first.clear();
  side.last = c10::Storage();
  side.last_value = nullptr;
  side.tape.reset();
}

}  // namespace retape::detail

#endif
