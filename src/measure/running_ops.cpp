#include "measure/running_ops.h"

#include "tape/activity.h"
#include "tape/each_tensor.h"
#include "torch/counting_allocator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <vector>

namespace retape::detail {

namespace {

struct Running {
  std::string name;
  bool is_node;      // of a backward
  bool makes_graph;  // grad mode as the engine set it: create_graph
};

thread_local std::vector<Running> running;

// The engine's own work for a node is told as the node's.
std::string shown(const std::string& name) {
  static const std::string evaluates = "autograd::engine::evaluate_function: ";
  return name.starts_with(evaluates) ? name.substr(evaluates.size()) : name;
}

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& fn) {
  const bool is_node = fn.scope() == at::RecordScope::BACKWARD_FUNCTION;
  running.push_back({shown(fn.name()), is_node, at::GradMode::is_enabled()});
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
  return name.starts_with("aten::empty") || name.starts_with("aten::resize");
}

}  // namespace

RunningOps::RunningOps()
    : handle_(
          at::addGlobalCallback(
              at::RecordFunctionCallback(enter, leave)
                  .needsOutputs(true)
                  .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}))) {}

RunningOps::~RunningOps() {
  at::removeCallback(handle_);
}

std::string current_op_name() {
  const auto* replayed = Activity::of_this_thread().op;
  for (auto it = running.rbegin(); it != running.rend(); ++it) {
    const bool is_op = it->name.find("::") != std::string::npos;
    if (!is_op && replayed != nullptr) {
      return *replayed;  // not for the node that asked for it
    }
    if (!only_allocates(it->name)) {
      return it->name;
    }
  }
  return replayed != nullptr ? *replayed : std::string();
}

bool runs_forward_in_backward() {
  const auto node = std::find_if(
      running.rbegin(), running.rend(), [](const Running& op) { return op.is_node; });
  return node != running.rend() && !node->makes_graph && at::GradMode::is_enabled();
}

}  // namespace retape::detail
