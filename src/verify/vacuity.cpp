#include "verify/vacuity.h"

#include "check/elements.h"
#include "check/readable.h"

#include <algorithm>
#include <map>

namespace retape::detail {

namespace {

constexpr size_t kMostNames = 8;

bool matches(const std::string& name, const std::string& pattern) {
  if (!pattern.empty() && pattern.back() == '*') {
    return name.compare(0, pattern.size() - 1, pattern, 0, pattern.size() - 1) == 0;
  }
  return name == pattern;
}

uint64_t recomputed(const SeenRegion& region) {
  return region.ops_replayed + region.reruns;
}

std::string names_of(const std::vector<SeenRegion>& regions) {
  std::string names;
  for (size_t i = 0; i < regions.size() && i < kMostNames; ++i) {
    names += (i == 0 ? "\"" : ", \"") + regions[i].name + "\"";
  }
  return regions.size() > kMostNames ? names + "..." : names;
}

std::string why_nothing_was_replayed(
    const std::vector<SeenRegion>& regions, const VerifyOptions& options) {
  uint64_t ops = 0;
  for (const auto& region : regions) {
    ops += region.ops_recorded;
  }
  if (regions.empty()) {
    return "no scope, checkpoint or layer was entered (in eval mode layers are plain calls)";
  }
  if (options.scope && options.policy.describe() == Policy::none().describe()) {
    return "policy none drops nothing";
  }
  return std::to_string(ops) + " ops were recorded in " + std::to_string(regions.size()) +
      (regions.size() == 1 ? " region" : " regions") +
      ", and backward found all that it needed kept";
}

enum class Life { None, Zero, NaN, Alive };

Life life_of(const at::Tensor& grad, const std::string& name) {
  if (!grad.defined()) {
    return Life::None;
  }
  const auto plain = readable(grad, "gradient \"" + name + "\"");
  const auto* data = plain.const_data_ptr();
  if (plain.numel() == 0) {
    return Life::Alive;  // has nothing that could be dead
  }
  if (all_zero(plain.scalar_type(), data, plain.numel())) {
    return Life::Zero;
  }
  return all_nan(plain.scalar_type(), data, plain.numel()) ? Life::NaN : Life::Alive;
}

// By leaf, in the order of leaves: the best that any step saw.
std::vector<std::pair<std::string, Life>> lives(const Trace& trace) {
  std::vector<std::pair<std::string, Life>> found;
  std::map<std::string, size_t> places;
  for (const auto& taken : trace.tensors) {
    if (taken.what != "gradient") {
      continue;
    }
    const auto [place, is_new] = places.emplace(taken.name, found.size());
    if (is_new) {
      found.emplace_back(taken.name, Life::None);
    }
    auto& life = found[place->second].second;
    if (life != Life::Alive) {
      life = std::max(life, life_of(taken.tensor, taken.name));
    }
  }
  return found;
}

const char* reason(Life life) {
  switch (life) {
    case Life::None:
      return " has no gradient in either run";
    case Life::Zero:
      return " has an all-zero gradient in both runs";
    default:
      return " has nothing but NaN for a gradient in both runs";
  }
}

}  // namespace

bool matches(const std::string& name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) {
    return matches(name, pattern);
  });
}

std::vector<std::string> vacuous_regions(
    const std::vector<SeenRegion>& regions,
    const VerifyOptions& options,
    bool grad_enabled,
    bool backward_ran) {
  std::vector<std::string> reasons;
  if (!grad_enabled) {
    return {"gradients are disabled (no_grad): nothing was recorded, and no backward ran"};
  }
  if (!backward_ran) {
    return {
        "no loss requires a gradient: no backward ran (a step under no_grad, or without trainable "
        "leaves)"};
  }
  if (std::none_of(regions.begin(), regions.end(), [](const auto& region) {
        return recomputed(region) > 0;
      })) {
    reasons.push_back("nothing was replayed: " + why_nothing_was_replayed(regions, options));
  }
  for (const auto& wanted : options.regions) {
    bool ran = false, replayed = false;
    for (const auto& region : regions) {
      if (matches(region.name, wanted)) {
        ran = true;
        replayed = replayed || recomputed(region) > 0;
      }
    }
    if (!ran) {
      reasons.push_back(
          "region \"" + wanted + "\" never ran" +
          (regions.empty() ? "" : "; these did: " + names_of(regions)));
    } else if (!replayed) {
      reasons.push_back("region \"" + wanted + "\" ran, but nothing of it was recomputed");
    }
  }
  return reasons;
}

std::vector<std::string> vacuous_gradients(
    const Trace& plain, const Trace& recomputed, const VerifyOptions& options) {
  std::vector<std::string> reasons;
  const auto in_plain = lives(plain), in_recomputed = lives(recomputed);
  for (size_t i = 0; i < in_plain.size() && i < in_recomputed.size(); ++i) {
    const auto& [name, life] = in_plain[i];
    if (life != Life::Alive && life == in_recomputed[i].second &&
        !matches(name, options.may_be_dead)) {
      reasons.push_back("leaf \"" + name + "\"" + reason(life));
    }
  }
  if (in_plain.empty()) {
    reasons.emplace_back("no leaf requires a gradient: no gradient was compared");
  }
  return reasons;
}

}  // namespace retape::detail
