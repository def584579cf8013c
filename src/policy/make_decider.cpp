#include "record/decider.h"

#include "policy/anchors.h"
#include "policy/policy_impl.h"
#include "policy/window.h"
#include "tape/region.h"

namespace retape::detail {

Shelf::~Shelf() = default;
Decider::~Decider() = default;

std::unique_ptr<Decider> make_decider(Region& region, Shelf& shelf) {
  const auto& policy = region.policy.impl();
  switch (policy.kind) {
    case Policy::Impl::Kind::Full:
      return policy.anchors ? std::make_unique<Anchors>(region, shelf) : nullptr;
    case Policy::Impl::Kind::Cheap:
      return std::make_unique<Window>(region, shelf);
    case Policy::Impl::Kind::None:
    case Policy::Impl::Kind::Function:
      break;
  }
  return nullptr;
}

}  // namespace retape::detail
