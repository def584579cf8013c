#include "verify/run.h"
#include "verify/vacuity.h"
#include "verify/verdict.h"

#include <retape/eager.h>
#include <retape/error.h>
#include <retape/recompute.h>
#include <retape/verify.h>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>

namespace retape {

namespace detail {

namespace {

// What a recomputed run came to.
struct Observed {
  std::optional<Trace> trace;  // none: it raised
  std::string error;
  std::vector<Finding> findings;
  std::vector<SeenRegion> regions;
  uint64_t values_checked = 0;
};

// Without the stack of C++ that libtorch puts under its own.
std::string text_of(const std::exception& error) {
  const auto* known = dynamic_cast<const c10::Error*>(&error);
  return known != nullptr ? known->what_without_backtrace() : error.what();
}

Observed observe(Runs& runs, const Order& order, bool copies) {
  Observed observed;
  Observer::Options options;
  options.copies = copies;
  Observer observer(options);
  try {
    observed.trace = runs.recomputed(order);
  } catch (const std::exception& error) {
    observed.error = text_of(error);
    if (observed.error.empty()) {
      observed.error = "an exception without a text";
    }
  }
  observed.findings = observer.findings();
  observed.regions = observer.regions();
  observed.values_checked = observer.values_checked();
  if (const auto bytes = observer.bytes_held(); bytes > 0 && observed.error.empty()) {
    Finding leak;
    leak.kind = "leak";
    leak.what = "expected no bytes held when the graph was gone, got " + std::to_string(bytes);
    observed.findings.push_back(std::move(leak));
  }
  return observed;
}

std::vector<Difference> differences(
    const Order& order, const Trace& plain, const Trace& other, const VerifyOptions& options) {
  std::vector<Difference> found;
  const auto add = [&](Difference difference, const Taken& taken) {
    difference.order = order.name;
    difference.step = taken.step;
    difference.what = taken.what;
    difference.name = taken.name;
    found.push_back(std::move(difference));
  };
  const size_t count = std::max(plain.tensors.size(), other.tensors.size());
  for (size_t i = 0; i < count; ++i) {
    const auto* a = i < plain.tensors.size() ? &plain.tensors[i] : nullptr;
    const auto* b = i < other.tensors.size() ? &other.tensors[i] : nullptr;
    if (a == nullptr || b == nullptr || a->what != b->what || a->name != b->name) {
      Difference difference;  // from here on nothing has its counterpart
      difference.plain = a == nullptr ? "nothing" : a->what + " \"" + a->name + "\"";
      difference.recomputed = b == nullptr ? "nothing" : b->what + " \"" + b->name + "\"";
      add(std::move(difference), a == nullptr ? *b : *a);
      return found;
    }
    if (auto difference = compare(a->tensor, b->tensor, options.tolerance)) {
      add(std::move(*difference), *a);
    }
  }
  return found;
}

std::string unstable(const std::vector<Difference>& found) {
  return "the plain run differs from itself in " + line_of(found.front(), false) +
      (found.size() == 1 ? "" : " and " + std::to_string(found.size() - 1) + " more");
}

void add_regions(std::vector<SeenRegion>& all, const std::vector<SeenRegion>& more) {
  for (const auto& region : more) {
    const auto known = std::find_if(
        all.begin(), all.end(), [&](const auto& other) { return other.name == region.name; });
    if (known == all.end()) {
      all.push_back(region);
      continue;
    }
    known->ops_recorded += region.ops_recorded;
    known->ops_replayed += region.ops_replayed;
    known->reruns += region.reruns;
    known->kept_ops.insert(known->kept_ops.end(), region.kept_ops.begin(), region.kept_ops.end());
  }
}

// By op; most bytes first.
std::vector<KeptOp> kept_ops_of(const std::vector<SeenRegion>& regions) {
  std::map<std::string, KeptOp> by_name;
  for (const auto& region : regions) {
    for (const auto& kept : region.kept_ops) {
      auto& all = by_name[kept.op];
      all.op = kept.op;
      all.values += kept.values;
      all.bytes += kept.bytes;
    }
  }
  std::vector<KeptOp> ops;
  for (auto& [name, kept] : by_name) {
    ops.push_back(std::move(kept));
  }
  std::stable_sort(
      ops.begin(), ops.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return ops;
}

void check_called_outside() {
  const char* what = is_recording() ? "inside a scope, which would record the plain run too"
      : is_eager()                  ? "under Eager, where nothing is recomputed"
                                    : nullptr;
  if (what != nullptr) {
    throw UsageError(
        std::string("[verify] it was called ") + what +
        ". Fix: call it outside; it opens what it needs.");
  }
}

// One verify, order by order.
class Verification {
 public:
  Verification(const Subject& subject, const VerifyOptions& options, const Backward& backward)
      : options_(options),
        runs_(subject, options, backward) {
    verdict_.with_tolerance = !options.tolerance.empty();
  }

  Verdict go() {
    const auto orders = first();
    for (size_t i = 1; i < orders.size() && verdict_.error.empty() && !unstable_; ++i) {
      another(orders[i]);
    }
    if (verdict_.error.empty()) {
      const auto idle = vacuous_regions(regions_, options_, grad_enabled_, backward_ran_);
      verdict_.vacuous.insert(verdict_.vacuous.begin(), idle.begin(), idle.end());
    }
    for (const auto& region : regions_) {
      verdict_.ops_replayed += region.ops_replayed;
      verdict_.reruns += region.reruns;
    }
    const bool found = !verdict_.findings.empty() && !verdict_.with_tolerance;
    verdict_.kind = !verdict_.differences.empty() || found || !verdict_.error.empty()
        ? Verdict::Kind::Different
        : verdict_.vacuous.empty() ? Verdict::Kind::Equal
                                   : Verdict::Kind::Vacuous;
    return std::move(verdict_);
  }

 private:
  // All at once, as everybody trains. Returns the orders that there are.
  std::vector<Order> first() {
    const auto order = orders_of({}, false).front();
    const auto plain = runs_.plain(order);
    backward_ran_ = !plain.losses.empty();
    if (options_.plain_twice) {
      check_stable(order, plain);
    }
    const auto trace = recompute(order, plain);
    verdict_.kept_ops = kept_ops_of(regions_);
    if (trace && backward_ran_) {
      verdict_.vacuous = vacuous_gradients(plain, *trace, options_);
    }
    if (unstable_) {
      verdict_.vacuous.push_back(*unstable_);
    }
    return orders_of(plain.losses, options_.orders && backward_ran_);
  }

  void another(const Order& order) {
    std::optional<Trace> plain;
    try {
      plain = runs_.plain(order);
    } catch (const std::exception& error) {
      must_raise_too(order, text_of(error));
      return;
    }
    const size_t before = verdict_.differences.size();
    recompute(order, *plain);
    if (verdict_.differences.size() > before && options_.plain_twice) {
      check_stable(order, *plain);
      if (unstable_) {
        verdict_.differences.resize(before);
        verdict_.vacuous.push_back(*unstable_);
      }
    }
  }

  // Where plain autograd refuses, so must a recomputed run: what it returned would be wrong.
  void must_raise_too(const Order& order, const std::string& error) {
    const auto observed = observe(runs_, order, /*copies=*/false);
    add_regions(regions_, observed.regions);
    if (!observed.trace) {
      verdict_.skipped.push_back(order.name + ": " + error);
      return;
    }
    Difference difference;
    difference.order = order.name;
    difference.what = "error";
    difference.name = order.name;
    difference.plain = error;
    difference.recomputed = "none";
    verdict_.differences.push_back(std::move(difference));
  }

  void check_stable(const Order& order, const Trace& plain) {
    const auto found = differences(order, plain, runs_.plain(order), options_);
    if (!found.empty()) {
      unstable_ = unstable(found);
    }
  }

  std::optional<Trace> recompute(const Order& order, const Trace& plain) {
    verdict_.orders.push_back(order.name);
    auto observed = observe(runs_, order, /*copies=*/false);
    verdict_.values_checked += observed.values_checked;
    add_regions(regions_, observed.regions);
    bool wrong = !observed.findings.empty();
    if (!observed.trace) {
      verdict_.error = observed.error;
      wrong = true;
    } else {
      verdict_.tensors_compared += std::min(plain.tensors.size(), observed.trace->tensors.size());
      auto found = differences(order, plain, *observed.trace, options_);
      wrong = wrong || !found.empty();
      if (!unstable_) {
        verdict_.differences.insert(verdict_.differences.end(), found.begin(), found.end());
      }
    }
    if (wrong && verdict_.findings.empty()) {
      const auto again = observe(runs_, order, /*copies=*/true);  // for ulps
      verdict_.findings = again.findings.empty() ? observed.findings : again.findings;
    }
    return std::move(observed.trace);
  }

  const VerifyOptions& options_;
  const bool grad_enabled_ = c10::GradMode::is_enabled();
  Runs runs_;
  Verdict verdict_;
  std::vector<SeenRegion> regions_;
  std::optional<std::string> unstable_;  // how the plain run differs from itself
  bool backward_ran_ = false;
};

}  // namespace

Verdict verify(const Subject& subject, const VerifyOptions& options, const Backward& backward) {
  check_called_outside();
  return Verification(subject, options, backward).go();
}

}  // namespace detail

Verdict verify(const Subject& subject, const VerifyOptions& options) {
  return detail::verify(subject, options, [](const at::Tensor& root, bool retain_graph) {
    torch::autograd::backward({root}, {}, retain_graph);
  });
}

}  // namespace retape
