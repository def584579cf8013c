#include "policy/anchors.h"
#include "policy/op_question.h"
#include "policy/policy_rules.h"
#include "policy/window.h"

#include <retape/error.h>
#include <retape/policy.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <sstream>

namespace retape {

namespace {

using detail::PolicyRules;
using Kind = PolicyRules::Kind;

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

template <typename Change>
std::shared_ptr<const PolicyRules> changed(const PolicyRules& rules, Change&& change) {
  auto copy = std::make_shared<PolicyRules>(rules);
  change(*copy);
  return copy;
}

}  // namespace

Policy::Policy(std::shared_ptr<const PolicyRules> rules) : rules_(std::move(rules)) {}

Policy Policy::none() {
  return Policy(std::make_shared<PolicyRules>(Kind::None));
}

Policy Policy::full() {
  return Policy(std::make_shared<PolicyRules>(Kind::Full));
}

Policy Policy::cheap() {
  return Policy(std::make_shared<PolicyRules>(Kind::Cheap));
}

Policy Policy::function(PolicyFunction decide) {
  if (!decide) {
    throw UsageError(
        "[Policy::function] expected a function, got an empty one. Fix: pass a callable.");
  }
  auto rules = std::make_shared<PolicyRules>(Kind::Function);
  rules->function = std::move(decide);
  return Policy(std::move(rules));
}

Policy Policy::selective(OpPolicyFunction decide) {
  if (!decide) {
    throw UsageError(
        "[Policy::selective] expected a function, got an empty one. Fix: pass a callable.");
  }
  auto rules = std::make_shared<PolicyRules>(Kind::Function);
  rules->op_function = std::move(decide);
  return Policy(std::move(rules));
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
  return Policy(changed(*rules_, [&](auto& rules) { rules.keep(names); }));
}

Policy Policy::drop_ops(const std::vector<std::string>& names) const {
  check_names("drop_ops", names);
  return Policy(changed(*rules_, [&](auto& rules) { rules.drop(names); }));
}

Policy Policy::lean(bool on) const {
  return Policy(changed(*rules_, [&](auto& rules) { rules.edits_graph = on; }));
}

Policy Policy::anchors(bool on) const {
  return Policy(changed(*rules_, [&](auto& rules) { rules.set_anchors(on); }));
}

std::string Policy::describe() const {
  return rules_->describe();
}

namespace detail {

PolicyRules::PolicyRules(Kind kind) : kind_(kind) {
  drops_nothing = kind == Kind::None;
  keeps_boundaries = kind != Kind::Function;
  reports_kept_ops = kind == Kind::Full || kind == Kind::Function;
  may_hold_results = kind == Kind::Full || kind == Kind::Cheap;
  holds_anchors = kind == Kind::Full;
}

// Without anchors everything is dropped, what nested scopes leave too.
void PolicyRules::set_anchors(bool on) {
  anchors_ = on;
  keeps_boundaries = kind_ != Kind::Function && (kind_ != Kind::Full || on);
}

void PolicyRules::drop(const std::vector<std::string>& names) {
  drop_.insert(drop_.end(), names.begin(), names.end());
}

void PolicyRules::keep(const std::vector<std::string>& names) {
  keep_.insert(keep_.end(), names.begin(), names.end());
}

bool PolicyRules::is_named_to_drop(const OpInfo& op) const {
  return !drop_.empty() && any_matches(drop_, op.name);
}

Birth PolicyRules::birth(const OpInfo& op) const {
  if (!keep_.empty() && any_matches(keep_, op.name)) {
    return Birth::Keep;
  }
  if (is_named_to_drop(op)) {
    return Birth::Obey;
  }
  switch (kind_) {
    case Kind::None:
      return Birth::Keep;
    case Kind::Function:
      return Birth::Ask;
    case Kind::Full:
    case Kind::Cheap:
      break;
  }
  return Birth::Drop;
}

std::unique_ptr<OpQuestion> PolicyRules::question(
    const OpInfo& op, const torch::jit::Stack& stack) const {
  const bool asks = op_function && birth(op) == Birth::Ask;
  return asks ? std::make_unique<SelectiveQuestion>(op_function, op, stack) : nullptr;
}

std::unique_ptr<Decider> PolicyRules::decider(Region& region, Shelf& shelf) const {
  switch (kind_) {
    case Kind::Full:
      return anchors_ ? std::make_unique<Anchors>(region, shelf) : nullptr;
    case Kind::Cheap:
      return std::make_unique<Window>(*this, region, shelf);
    case Kind::None:
    case Kind::Function:
      break;
  }
  return nullptr;
}

std::string PolicyRules::describe() const {
  static constexpr const char* kNames[] = {"none", "full", "cheap", "function"};
  std::string text = op_function ? "selective" : kNames[static_cast<int>(kind_)];
  if (kind_ == Kind::Full && !anchors_) {
    text += ", no anchors";
  }
  if (!edits_graph) {
    text += ", not lean";
  }
  if (!keep_.empty()) {
    text += ", keep " + joined(keep_);
  }
  if (!drop_.empty()) {
    text += ", drop " + joined(drop_);
  }
  return text;
}

}  // namespace detail

}  // namespace retape
