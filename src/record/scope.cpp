#include "record/scope.h"

namespace retape::detail {

OpQuestion::~OpQuestion() = default;
Rules::~Rules() = default;
Shelf::~Shelf() = default;
Decider::~Decider() = default;

Scope::Scope(std::shared_ptr<const Rules> of_policy, std::string name)
    : rules(std::move(of_policy)),
      region(std::make_shared<Region>(std::move(name))) {
  region->may_hold_results = rules->may_hold_results;
  region->holds_anchors = rules->holds_anchors;
}

}  // namespace retape::detail
