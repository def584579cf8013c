#include "dist/gradcheck/runner.h"

#include "dist/group_impl.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <sstream>

namespace retape::dist::detail {

namespace {

// Of the reference: what travels does not matter to it.
std::string key_of(const Case& what) {
  std::ostringstream key;
  key << what.topology.text() << "|" << static_cast<int>(what.dtype) << "|" << what.steps << "|"
      << what.seed;
  for (const auto& [name, coefficient] : what.terms) {
    key << "|" << name << "=" << coefficient;
  }
  return key.str();
}

// What is no std::exception (a thread that is cancelled, an interrupt) passes through.
template <typename Function>
Caught caught(Function function) {
  try {
    function();
    return {};
  } catch (const CollectiveError& error) {
    return {std::current_exception(), error.what(), true};
  } catch (const c10::Error& error) {
    return {std::current_exception(), error.what_without_backtrace(), false};
  } catch (const std::exception& error) {
    return {std::current_exception(), error.what(), false};
  }
}

// Ranks may have gaps: the highest says nothing of the others.
bool is_in(const Topology& topology, int rank) {
  const auto ranks = topology.all_ranks();
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

}  // namespace

void Runner::fail(
    const std::string& name, const std::vector<RankError>& errors, std::exception_ptr own) const {
  // Where it was thrown it is most telling, unless it says only that another rank did not come.
  const auto is_own = [&](const RankError& error) {
    return error.rank == everyone_.rank() && !error.collective;
  };
  std::string text = "[GradCheck] " + name + ": ";
  std::vector<int> ranks;
  bool root = false;
  for (const auto& error : errors) {
    if (is_own(error)) {
      std::rethrow_exception(own);
    }
    root |= !error.collective;
  }
  for (const auto& error : errors) {
    if (!root || !error.collective) {
      text += (ranks.empty() ? "" : "; ") + std::string("rank ") + std::to_string(error.rank) +
          " raised: " + error.text;
      ranks.push_back(error.rank);
    }
  }
  throw CollectiveError(text, ranks);
}

const Outcome& Runner::reference(const Case& what, const std::string& name) {
  const auto key = key_of(what);
  const auto it = known_.find(key);
  if (it != known_.end()) {
    return it->second;
  }
  Outcome outcome;
  const auto error = caught([&] {
    if (first()) {
      Case alone = what;
      alone.wire.reset();
      outcome = reference_(alone);
      check(outcome);
    }
  });
  if (error.error && raised_) {
    raised_(error.text);
  }
  if (const auto ran = unite({}, error); !ran.errors.empty()) {
    fail(name + ", reference", ran.errors, ran.own);
  }
  return known_.emplace(key, std::move(outcome)).first->second;
}

Ran Runner::run(
    const Case& what, const std::vector<Break>& breaks, const GradCheck::Raised& raised) {
  Share mine;
  const auto error = caught([&] {
    if (is_in(what.topology, everyone_.rank())) {
      const Watch watch(breaks);
      mine.ran = true;
      Case here = what;
      here.was_cut = was_cut_;
      mine.outcome = distributed_(here);
      check(mine.outcome);
      mine.seen = watch.seen();
      mine.hit = watch.hit();
    }
  });
  if (error.error && !error.collective && raised) {
    raised(error.text);
  }
  return unite(std::move(mine), error);
}

Ran Runner::unite(Share mine, const Caught& caught) const {
  if (caught.error) {
    const auto text = caught.text.empty() ? "an exception without text" : caught.text;
    mine = {RankError{everyone_.rank(), text, caught.collective}};
  }
  try {
    auto ran = detail::unite(everyone_, mine, replicated_);
    ran.own = caught.error;
    return ran;
  } catch (const CollectiveError&) {
    if (caught.error) {  // it says more than that nobody came to hear it
      std::rethrow_exception(caught.error);
    }
    throw;
  }
}

Ran Runner::distributed(const Case& what, const std::string& name) {
  auto ran = run(what, {}, raised_);
  if (!ran.errors.empty()) {
    fail(name, ran.errors, ran.own);
  }
  return ran;
}

Ran Runner::broken(const Case& what, const std::vector<Break>& breaks) {
  return run(what, breaks, nullptr);
}

Ran Runner::attempt(const Case& what) {
  return run(what, {}, nullptr);
}

bool Runner::decide(bool decision) const {
  const auto said = at::full({1}, decision ? 1 : 0, at::kLong);
  everyone_.broadcast("gradcheck decision", said);
  return said.item<int64_t>() != 0;
}

bool Runner::anywhere(const std::string& what, bool here) const {
  const auto ranks = at::full({1}, here ? 1 : 0, at::kLong);
  sum_in_place(everyone_, what, ranks).wait();
  return ranks.item<int64_t>() > 0;
}

}  // namespace retape::dist::detail
