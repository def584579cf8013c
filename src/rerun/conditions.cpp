#include "rerun/conditions.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

namespace retape::detail {

Conditions::Conditions(bool generators)
    : surroundings_(Surroundings::now()), generators_(generators) {
  if (generators_) {
    // Kernels that the dispatcher does not see draw from this one, if from any.
    draws_.push_back(Draw::of(at::detail::getDefaultCPUGenerator()));
  }
}

void Conditions::note(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  if (!generators_ || !op.random) {
    return;
  }
  auto source = Draw::generator_of(op, args);
  if (!source.defined()) {
    return;
  }
  const bool known = std::any_of(draws_.begin(), draws_.end(), [&](const auto& draw) {
    return draw->source() == source;
  });
  if (!known) {
    draws_.push_back(Draw::of(std::move(source)));
  }
}

Conditions::Again::Again(const Conditions& conditions)
    : conditions_(conditions), surroundings_(conditions.surroundings_) {
  for (const auto& draw : conditions_.draws_) {
    later_.push_back(draw->rewind());
  }
}

Conditions::Again::~Again() {
  for (size_t i = 0; i < later_.size(); ++i) {
    conditions_.draws_[i]->restore(later_[i]);
  }
}

}  // namespace retape::detail
