#include "tape/replayable.h"

#include "tape/op_info.h"
#include "tape/op_lists.h"

#include <retape/error.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <string_view>

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

void replayable(const std::string& name) {
  constexpr std::string_view kDefault = ".default";  // as Python calls the overload without a name
  const bool is_default = std::string_view(name).ends_with(kDefault);
  const auto op = is_default ? name.substr(0, name.size() - kDefault.size()) : name;
  const auto colons = op.find("::");
  if (colons == 0 || colons == std::string::npos || colons + 2 == op.size()) {
    throw UsageError(
        "[replayable] \"" + op +
        "\" is not the name of an op: expected \"library::op\" or "
        "\"library::op.overload\". Fix: take the name from torch.ops, e.g. torch.ops.mylib.op is "
        "\"mylib::op\".");
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
  return named().ops.contains(op.name) || named().ops.contains(with_overload(op));
}

}  // namespace detail
}  // namespace retape
