#include "memory/running_ops.h"

#include "memory/counting_allocator.h"
#include "record/each_tensor.h"

#include <ATen/record_function.h>

#include <vector>

namespace retape::detail {

namespace {

thread_local std::vector<std::string> running;

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& fn) {
  running.emplace_back(fn.name());
  return nullptr;
}

void leave(const at::RecordFunction& fn, at::ObserverContext*) {
  for (const auto& output : fn.outputs()) {
    each_tensor(output, [](const at::Tensor& tensor, int) {
      if (tensor.defined() && tensor.has_storage()) {
        tell_returned(tensor);
      }
    });
  }
  if (!running.empty()) {
    running.pop_back();
  }
}

bool only_allocates(const std::string& name) {
  return name.rfind("aten::empty", 0) == 0 || name.rfind("aten::resize", 0) == 0;
}

}  // namespace

RunningOps::RunningOps()
    : handle_(at::addGlobalCallback(
          at::RecordFunctionCallback(enter, leave)
              .needsOutputs(true)
              .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}))) {}

RunningOps::~RunningOps() {
  at::removeCallback(handle_);
}

std::string current_op_name() {
  for (auto it = running.rbegin(); it != running.rend(); ++it) {
    if (!only_allocates(*it)) {
      return *it;
    }
  }
  return {};
}

}  // namespace retape::detail
