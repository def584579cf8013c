#include "record/replayable.h"

#include "record/op_info.h"
#include "record/op_lists.h"

#include <retape/error.h>

#include <algorithm>
#include <mutex>
#include <set>

namespace retape {

namespace {

struct Named {
  std::mutex mutex;
  std::set<std::string> ops;
};

Named& named() {
  static auto* instance = new Named;  // outlives every thread's last op
  return *instance;
}

std::string with_overload(const c10::OperatorName& op) {
  return op.overload_name.empty() ? op.name : op.name + "." + op.overload_name;
}

}  // namespace

void replayable(const std::string& op) {
  const auto all = c10::Dispatcher::singleton().getAllOpNames();
  const bool known = std::any_of(all.begin(), all.end(), [&](const c10::OperatorName& name) {
    return name.name == op || with_overload(name) == op;
  });
  if (!known) {
    throw UsageError(
        "[replayable] no op is called \"" + op +
        "\": expected the name of a registered op, such as \"mylib::op\" or \"mylib::op.overload\". Fix: "
        "import the library that registers it first.");
  }
  {
    std::lock_guard<std::mutex> lock(named().mutex);
    named().ops.insert(op);
  }
  detail::forget_op_infos();
}

std::vector<std::string> replayable_ops() {
  std::lock_guard<std::mutex> lock(named().mutex);
  return {named().ops.begin(), named().ops.end()};
}

namespace detail {

bool is_replayable(const c10::OperatorName& op) {
  const auto& known = lists::kKnownReplayable;
  if (std::find(known.begin(), known.end(), op.name) != known.end()) {
    return true;
  }
  std::lock_guard<std::mutex> lock(named().mutex);
  return named().ops.count(op.name) != 0 || named().ops.count(with_overload(op)) != 0;
}

}  // namespace detail
}  // namespace retape
