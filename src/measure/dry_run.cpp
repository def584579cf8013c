// Ops come here in place of their kernels, below autograd and Python's handlers
// (torch/interceptor.h).
#include <retape/dry_run.h>
#include <retape/flops.h>

#include "measure/flops.h"
#include "tape/each_tensor.h"
#include "tape/op_info.h"
#include "torch/counting_allocator.h"
#include "torch/interceptor.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zero.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace retape {

namespace {

using detail::OpInfo;

bool is_cpu_tensor(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided;
}

at::Tensor shape_of(const at::Tensor& tensor) {
  // A number in a tensor's clothes goes as it is, with whatever it stands beside.
  if (!is_cpu_tensor(tensor) || tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    return tensor;
  }
  return at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
}

c10::IValue shape_of(const c10::IValue& arg) {
  if (arg.isTensor()) {
    return shape_of(arg.toTensor());
  }
  if (arg.isTensorList()) {
    c10::List<at::Tensor> shapes;
    for (const at::Tensor& tensor : arg.toTensorList()) {
      shapes.push_back(shape_of(tensor));
    }
    return shapes;
  }
  if (arg.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> shapes;
    for (const std::optional<at::Tensor>& tensor : arg.toOptionalTensorList()) {
      shapes.push_back(tensor ? std::make_optional(shape_of(*tensor)) : std::nullopt);
    }
    return shapes;
  }
  if (arg.isDevice() && arg.toDevice().is_cpu()) {
    return c10::Device(c10::kMeta);
  }
  return arg;
}

at::Tensor memory_for(const at::Tensor& shape) {
  if (!shape.defined() || !shape.is_meta()) {
    return shape;
  }
  auto memory = at::empty_strided(
      shape.sizes(), shape.strides(), shape.options().device(c10::kCPU));
  const bool counts = !shape.is_floating_point() && !shape.is_complex();
  return counts ? memory.zero_()
                : memory;  // a valid index, and false: loops that wait for truth end
}

c10::IValue memory_for(const c10::IValue& result) {
  if (result.isTensor()) {
    return memory_for(result.toTensor());
  }
  if (result.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& tensor : result.toTensorList()) {
      tensors.push_back(memory_for(tensor));
    }
    return tensors;
  }
  return result;
}

// Ops on integers and truths alone are computed: indices, masks, and what control flow looks at.
bool reads_floats(c10::ArrayRef<c10::IValue> args) {
  bool found = false;
  for (const auto& arg : args) {
    detail::each_tensor(arg, [&](const at::Tensor& tensor, int) {
      found |= is_cpu_tensor(tensor) && (tensor.is_floating_point() || tensor.is_complex());
    });
  }
  return found;
}

// Its result's shape follows from shapes, and nothing but a kernel of its own stands behind it.
bool can_be_dry(const c10::OperatorHandle& op, const OpInfo& info) {
  return info.returns_tensors && !info.is_view &&
      op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
      op.hasKernelForDispatchKey(c10::DispatchKey::Meta) &&
      !op.hasTag(at::Tag::dynamic_output_shape) && !op.hasTag(at::Tag::inplace_view) &&
      info.name.name != "aten::set_";  // writes no element, but shows another storage
}

// An op's own argument: itself, or out=, which takes the size of the result.
const c10::IValue& written(const c10::IValue& arg, const c10::IValue& shape) {
  if (arg.isTensor() && shape.isTensor() && arg.toTensor().sizes() != shape.toTensor().sizes()) {
    arg.toTensor().resize_(shape.toTensor().sizes());
  }
  return arg;
}

thread_local uint64_t flops_seen = 0;
thread_local bool is_dry = false;      // else a FlopCounter alone looks on
thread_local bool is_counted = false;  // what runs is a part of an op that was counted

class Counted {
 public:
  explicit Counted(uint64_t flops) : before_(is_counted) {
    if (!is_counted) {
      flops_seen += flops;
    }
    is_counted |= flops > 0;
  }
  ~Counted() { is_counted = before_; }

 private:
  const bool before_;
};

// aten::copy_, which has one kernel for all devices, where it would succeed.
bool is_copy_of_floats(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  if (info.name.name != "aten::copy_") {
    return false;
  }
  const auto& to = args[0].toTensor();
  const auto& from = args[1].toTensor();
  return is_cpu_tensor(to) && is_cpu_tensor(from) && to.is_floating_point() &&
      from.is_floating_point() && at::is_expandable_to(from.sizes(), to.sizes());
}

void run_dry(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  const OpInfo& info = detail::op_info(op);
  const auto args = torch::jit::last(*stack, info.arguments);
  const Counted counted(detail::flops_of(info.name.name, args));
  if (!is_dry) {
    op.redispatchBoxed(below, stack);
    return;
  }
  if (is_copy_of_floats(info, args)) {
    torch::jit::drop(*stack, info.arguments - 1);
    return;
  }
  if (!can_be_dry(op, info) || !reads_floats(args)) {
    op.redispatchBoxed(below, stack);  // the key stays on: its parts may be dry
    return;
  }
  torch::jit::Stack shapes;
  for (const auto& arg : args) {
    shapes.push_back(shape_of(arg));
  }
  {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::impl::ExcludeDispatchKeyGuard wet(detail::kHandlerKey);
    at::DisableRecordFunctionGuard nameless;  // how its shape is found is no part of the step
    detail::Uncounted uncounted;
    op.callBoxed(&shapes);
  }
  torch::jit::Stack results;
  const auto& returns = op.schema().returns();
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (returns[i].alias_info() != nullptr && !info.writes.empty()) {
      results.push_back(written(args[info.writes[i < info.writes.size() ? i : 0]], shapes[i]));
    } else {
      results.push_back(memory_for(shapes[i]));
    }
  }
  torch::jit::drop(*stack, info.arguments);
  for (auto& result : results) {
    stack->push_back(std::move(result));
  }
}

// How many on this thread want to see its ops.
void look_on(int change) {
  thread_local int lookers = 0;
  lookers += change;
  detail::set_kernel_runner(lookers > 0 ? &run_dry : nullptr);
}

}  // namespace

DryRun::DryRun() : was_on_(is_on()), before_(flops_seen) {
  is_dry = true;
  look_on(1);
}

DryRun::~DryRun() {
  is_dry = was_on_;
  look_on(-1);
}

bool DryRun::is_on() {
  return is_dry;
}

FlopCounter::FlopCounter() : before_(flops_seen) {
  look_on(1);
}

FlopCounter::~FlopCounter() {
  look_on(-1);
}

uint64_t FlopCounter::flops() const {
  return flops_seen - before_;
}

uint64_t DryRun::flops() const {
  return flops_seen - before_;
}

}  // namespace retape
