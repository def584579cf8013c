#include <retape/dist/contribution.h>

#include <retape/error.h>

#include <algorithm>
#include <atomic>
#include <mutex>

namespace retape::dist {

namespace {

// What the process's one Watch has seen. Steps may sum on threads of autograd's engine, so it is
// not a thread's own.
struct Watched {
  std::vector<Break> breaks;
  std::vector<Contribution> seen;
  bool hit = false;
};

std::atomic<bool> watching{false};
std::mutex mutex;
Watched watched;

void begin(Watched what) {
  const std::lock_guard guard(mutex);
  if (watching.load(std::memory_order_relaxed)) {
    throw UsageError("[Watch] there is one already. Fix: end it first.");
  }
  watched = std::move(what);
  watching.store(true, std::memory_order_relaxed);
}

}  // namespace

const char* text(Place place) {
  constexpr const char* kTexts[] = {"sum", "once", "count", "residual", "gradient", "norm"};
  return kTexts[static_cast<size_t>(place)];
}

const char* text(Mutation mutation) {
  constexpr const char* kTexts[] = {
      "none",
      "drop",
      "double",
      "on all ranks",
      "average",
      "times group",
      "local count",
      "other count",
      "local value",
      "every replica",
      "weighted"};
  return kTexts[static_cast<size_t>(mutation)];
}

std::vector<Mutation> mutations_of(Place place) {
  switch (place) {
    case Place::Sum:
    case Place::Gradient:
      return {Mutation::Drop, Mutation::Double, Mutation::Average, Mutation::TimesGroup};
    case Place::Once:
      return {Mutation::Drop, Mutation::Double, Mutation::OnAllRanks};
    case Place::Count:
      return {Mutation::Drop, Mutation::Double, Mutation::LocalCount, Mutation::TimesGroup};
    case Place::Residual:
      return {Mutation::Drop, Mutation::Double, Mutation::TimesGroup, Mutation::LocalValue};
    case Place::Norm:
      return {Mutation::EveryReplica};
  }
  return {};
}

std::optional<double> predicted_ratio(Mutation mutation, const Contribution& at, double factor) {
  if (at.place == Place::Count) {  // a denominator
    const auto if_even = [&](double ratio) {
      return at.even ? std::optional(ratio) : std::nullopt;
    };
    switch (mutation) {
      case Mutation::Drop:
        return if_even(at.size / (at.size - 1.0));
      case Mutation::Double:
        return 0.5;
      case Mutation::TimesGroup:
        return 1.0 / at.size;
      case Mutation::LocalCount:
        return if_even(at.size);
      case Mutation::OtherCount:
        return if_even(at.size / factor);
      default:
        break;
    }
  }
  switch (mutation) {
    case Mutation::None:
      return 1;
    case Mutation::Drop:
      return 0;
    case Mutation::Double:
      return 2;
    case Mutation::Average:
      return 1.0 / at.size;
    case Mutation::OnAllRanks:
    case Mutation::TimesGroup:
      return at.size;
    default:
      return std::nullopt;
  }
}

Watch::Watch() {
  begin({});
}

Watch::Watch(Contribution at, Mutation mutation, double factor) {
  begin({{{std::move(at), mutation, factor}}, {}, false});
}

Watch::Watch(std::vector<Break> breaks) {
  begin({std::move(breaks), {}, false});
}

Watch::~Watch() {
  watching.store(false, std::memory_order_relaxed);
}

std::vector<Contribution> Watch::seen() const {
  const std::lock_guard guard(mutex);
  return watched.seen;
}

bool Watch::hit() const {
  const std::lock_guard guard(mutex);
  return watched.hit;
}

namespace detail {

void merge(Contribution& known, const Contribution& other) {
  known.even = known.even && other.even && known.count == other.count;
  if (known.place == Place::Norm) {
    known.count = std::max(known.count, other.count);
  }
}

Change pass(
    Place place,
    const std::string& name,
    const std::string& group,
    int size,
    int64_t count,
    const std::string& contents) {
  if (!watching.load(std::memory_order_relaxed)) {
    return {};
  }
  const std::lock_guard guard(mutex);
  const Contribution here{place, name, group, size, count, true, contents};
  const auto known = std::find(watched.seen.begin(), watched.seen.end(), here);
  if (known == watched.seen.end()) {
    watched.seen.push_back(here);
  } else {
    merge(*known, here);
  }
  for (const auto& [at, mutation, factor] : watched.breaks) {
    if (at.place == place && at.group == group && (at.name == name || at.name == "*")) {
      watched.hit = true;
      return {mutation, factor};
    }
  }
  return {};
}

}  // namespace detail

}  // namespace retape::dist
