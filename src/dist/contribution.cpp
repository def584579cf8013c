#include <retape/dist/contribution.h>

#include <retape/error.h>

#include <algorithm>
#include <atomic>
#include <mutex>

namespace retape::dist {

namespace {

// What the process's one Watch has seen. Steps may sum on threads of autograd's engine, so it is not
// a thread's own.
struct Watched {
  std::optional<Contribution> at;
  Mutation mutation = Mutation::None;
  double factor = 1;
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
  switch (place) {
    case Place::Sum: return "sum";
    case Place::Once: return "once";
    case Place::Count: return "count";
    case Place::Residual: return "residual";
    case Place::Gradient: return "gradient";
    case Place::Norm: return "norm";
  }
  return "";
}

const char* text(Mutation mutation) {
  switch (mutation) {
    case Mutation::None: return "none";
    case Mutation::Drop: return "drop";
    case Mutation::Double: return "double";
    case Mutation::OnAllRanks: return "on all ranks";
    case Mutation::Average: return "average";
    case Mutation::TimesGroup: return "times group";
    case Mutation::LocalCount: return "local count";
    case Mutation::OtherCount: return "other count";
    case Mutation::LocalValue: return "local value";
    case Mutation::EveryReplica: return "every replica";
  }
  return "";
}

std::vector<Mutation> mutations_of(Place place) {
  switch (place) {
    case Place::Sum: return {Mutation::Drop, Mutation::Double, Mutation::Average, Mutation::TimesGroup};
    case Place::Once: return {Mutation::Drop, Mutation::Double, Mutation::OnAllRanks};
    case Place::Count: return {Mutation::LocalCount, Mutation::TimesGroup};
    case Place::Residual: return {Mutation::TimesGroup, Mutation::LocalValue};
    case Place::Gradient: return {Mutation::Drop, Mutation::Double, Mutation::TimesGroup};
    case Place::Norm: return {Mutation::EveryReplica};
  }
  return {};
}

std::optional<double> predicted_ratio(Mutation mutation, const Contribution& at, double factor) {
  switch (mutation) {
    case Mutation::None: return 1;
    case Mutation::Drop: return 0;
    case Mutation::Double: return 2;
    case Mutation::Average: return 1.0 / at.size;
    case Mutation::OnAllRanks: return at.size;
    case Mutation::TimesGroup: return at.place == Place::Count ? 1.0 / at.size : at.size;  // a denominator
    case Mutation::LocalCount: return at.size;
    case Mutation::OtherCount: return at.size / factor;
    case Mutation::LocalValue:
    case Mutation::EveryReplica: return std::nullopt;
  }
  return std::nullopt;
}

Watch::Watch() {
  begin({});
}

Watch::Watch(Contribution at, Mutation mutation, double factor) {
  begin({std::move(at), mutation, factor, {}, false});
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

Change pass(Place place, const std::string& name, const std::string& group, int size) {
  if (!watching.load(std::memory_order_relaxed)) {
    return {};
  }
  const std::lock_guard guard(mutex);
  const Contribution here{place, name, group, size};
  if (std::find(watched.seen.begin(), watched.seen.end(), here) == watched.seen.end()) {
    watched.seen.push_back(here);
  }
  if (!watched.at || !(*watched.at == here)) {
    return {};
  }
  watched.hit = true;
  return {watched.mutation, watched.factor};
}

}  // namespace detail

}  // namespace retape::dist
