#include "memory/op_names.h"

#include <ATen/record_function.h>

#include <vector>

namespace retape::detail {

namespace {

thread_local std::vector<std::string> running;

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& fn) {
  running.emplace_back(fn.name());
  return nullptr;
}

void leave(const at::RecordFunction&, at::ObserverContext*) {
  if (!running.empty()) {
    running.pop_back();
  }
}

bool only_allocates(const std::string& name) {
  return name.rfind("aten::empty", 0) == 0 || name.rfind("aten::resize", 0) == 0;
}

}  // namespace

OpNames::OpNames()
    : handle_(at::addGlobalCallback(
          at::RecordFunctionCallback(enter, leave)
              .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}))) {}

OpNames::~OpNames() {
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
