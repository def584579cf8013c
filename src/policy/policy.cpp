#include "policy/policy_impl.h"

#include <retape/error.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <sstream>

namespace retape {

namespace {

using detail::OpInfo;

const std::string kDefaultOverload = "default";

// "aten::add" names every overload, "aten::add.Tensor" one. The overload without a name is
// "aten::mm.default", as Python has it.
bool matches(const std::string& rule, const c10::OperatorName& op) {
  if (!rule.starts_with(op.name)) {
    return false;
  }
  const auto& overload = op.overload_name.empty() ? kDefaultOverload : op.overload_name;
  return rule.size() == op.name.size() ||
      (rule[op.name.size()] == '.' &&
       rule.compare(op.name.size() + 1, std::string::npos, overload) == 0);
}

bool any_matches(const std::vector<std::string>& rules, const c10::OperatorName& op) {
  return std::any_of(
      rules.begin(), rules.end(), [&](const auto& rule) { return matches(rule, op); });
}

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

// Every rule must name an op that can stand on the tape.
void check_names(const char* function, const std::vector<std::string>& rules) {
  const auto all = c10::Dispatcher::singleton().getAllOpNames();
  for (const auto& rule : rules) {
    bool found = false;
    bool recorded = false;
    for (const auto& name : all) {
      if (!matches(rule, name)) {
        continue;
      }
      found = true;
      const auto handle = c10::Dispatcher::singleton().findOp(name);
      const bool by_the_way = rule == name.name && handle && handle->hasTag(at::Tag::out);
      recorded |= handle && handle->hasSchema() && !by_the_way &&
          !detail::op_info(*handle).passes_through;
    }
    if (recorded) {
      continue;
    }
    std::ostringstream text;
    text << "[Policy::" << function << "] ";
    if (found) {
      text << "\"" << rule << "\" is a composite op: it never reaches the tape, the ops it calls do"
           << ". Fix: name those, e.g. aten::mm and aten::addmm for aten::linear.";
    } else {
      const auto nearest = std::min_element(
          all.begin(), all.end(), [&](const auto& a, const auto& b) {
            return edit_distance(rule, a.name) < edit_distance(rule, b.name);
          });
      text << "no op is called \"" << rule
           << "\": expected a dispatcher name such as \"aten::mm\" or "
           << "\"aten::add.Tensor\". Fix: did you mean \"" << nearest->name << "\"?";
    }
    throw UsageError(text.str());
  }
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) {
    text += (text.empty() ? "" : " ") + name;
  }
  return text;
}

Policy::Impl of_kind(Policy::Impl::Kind kind) {
  Policy::Impl impl;
  impl.kind = kind;
  return impl;
}

}  // namespace

Policy::Policy(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Policy Policy::none() {
  return Policy(std::make_shared<Impl>(of_kind(Impl::Kind::None)));
}

Policy Policy::full() {
  return Policy(std::make_shared<Impl>(of_kind(Impl::Kind::Full)));
}

Policy Policy::cheap() {
  return Policy(std::make_shared<Impl>(of_kind(Impl::Kind::Cheap)));
}

Policy Policy::function(PolicyFunction decide) {
  if (!decide) {
    throw UsageError(
        "[Policy::function] expected a function, got an empty one. Fix: pass a callable.");
  }
  auto impl = of_kind(Impl::Kind::Function);
  impl.decide = std::move(decide);
  return Policy(std::make_shared<Impl>(std::move(impl)));
}

Policy Policy::selective(OpPolicyFunction decide) {
  if (!decide) {
    throw UsageError(
        "[Policy::selective] expected a function, got an empty one. Fix: pass a callable.");
  }
  auto impl = of_kind(Impl::Kind::Function);
  impl.decide_op = std::move(decide);
  return Policy(std::make_shared<Impl>(std::move(impl)));
}

Policy Policy::named(const std::string& name) {
  if (name == "none") {
    return none();
  }
  if (name == "full") {
    return full();
  }
  if (name == "cheap") {
    return cheap();
  }
  throw UsageError(
      "[Policy::named] no policy is called \"" + name +
      "\": expected \"none\", \"full\" or \"cheap\". Fix: use one of these, or Policy::function "
      "for your own rule.");
}

Policy Policy::keep_ops(const std::vector<std::string>& names) const {
  check_names("keep_ops", names);
  auto impl = std::make_shared<Impl>(*impl_);
  impl->keep.insert(impl->keep.end(), names.begin(), names.end());
  return Policy(std::move(impl));
}

Policy Policy::drop_ops(const std::vector<std::string>& names) const {
  check_names("drop_ops", names);
  auto impl = std::make_shared<Impl>(*impl_);
  impl->drop.insert(impl->drop.end(), names.begin(), names.end());
  return Policy(std::move(impl));
}

Policy Policy::lean(bool on) const {
  auto impl = std::make_shared<Impl>(*impl_);
  impl->lean = on;
  return Policy(std::move(impl));
}

Policy Policy::anchors(bool on) const {
  auto impl = std::make_shared<Impl>(*impl_);
  impl->anchors = on;
  return Policy(std::move(impl));
}

std::string Policy::describe() const {
  static constexpr const char* kNames[] = {"none", "full", "cheap", "function"};
  std::string text = impl_->decide_op ? "selective" : kNames[static_cast<int>(impl_->kind)];
  if (impl_->kind == Impl::Kind::Full && !impl_->anchors) {
    text += ", no anchors";
  }
  if (!impl_->lean) {
    text += ", not lean";
  }
  if (!impl_->keep.empty()) {
    text += ", keep " + joined(impl_->keep);
  }
  if (!impl_->drop.empty()) {
    text += ", drop " + joined(impl_->drop);
  }
  return text;
}

bool Policy::Impl::named_to_drop(const OpInfo& op) const {
  return !drop.empty() && any_matches(drop, op.name);
}

detail::Birth Policy::Impl::birth(const OpInfo& op) const {
  if (!keep.empty() && any_matches(keep, op.name)) {
    return detail::Birth::Keep;
  }
  if (named_to_drop(op)) {
    return detail::Birth::Drop;
  }
  switch (kind) {
    case Kind::None:
      return detail::Birth::Keep;
    case Kind::Function:
      return detail::Birth::Ask;
    case Kind::Full:
    case Kind::Cheap:
      break;
  }
  return detail::Birth::Drop;
}

}  // namespace retape
