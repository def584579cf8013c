// Scope: a region while it is open, with the policy that rules it.
#pragma once

#include "record/rules.h"
#include "tape/region.h"

#include <memory>
#include <thread>
#include <utility>

namespace retape::detail {

struct Scope {
  Scope(std::shared_ptr<const Rules> of_policy, std::string name);

  const std::shared_ptr<const Rules> rules;
  const std::shared_ptr<Region> region;
  const std::thread::id thread = std::this_thread::get_id();
  bool open = false;
  bool inert = false;                // made under Eager: open in name only
  bool packs_all = false;            // autograd holds tokens of what is kept too, not the tensors
  size_t hooks_outside = 0;          // saved-tensor hooks of the user that were there before
  int graph_task = -1;               // backward it was opened in, if any
  std::unique_ptr<Decider> decider;  // null where every decision is taken at birth
};

}  // namespace retape::detail
