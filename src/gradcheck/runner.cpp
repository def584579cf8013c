#include "gradcheck/runner.h"

#include "dist/group_impl.h"
#include "gradcheck/packing.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <sstream>

namespace retape::dist::detail {

namespace {

// Of the reference: what travels does not matter to it.
std::string key_of(const Case& what) {
  std::ostringstream key;
  key << what.topology.text() << "|" << static_cast<int>(what.dtype) << "|" << what.steps << "|" << what.seed;
  for (const auto& [name, coefficient] : what.terms) {
    key << "|" << name << "=" << coefficient;
  }
  return key.str();
}

struct Caught {
  std::exception_ptr error;
  std::string text;
  bool collective = false;
};

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

std::vector<RankError> errors_of(const Group& everyone, const Caught& mine) {
  Packer packer;
  if (mine.error) {
    packer.number(mine.collective).text(mine.text.empty() ? "an exception without text" : mine.text);
  }
  std::vector<RankError> errors;
  std::vector<std::string> texts;
  try {
    texts = gather_texts(everyone, "gradcheck errors", packer.str());
  } catch (const CollectiveError&) {
    if (mine.error) {  // it says more than that nobody came to hear it
      std::rethrow_exception(mine.error);
    }
    throw;
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    if (!texts[i].empty()) {
      Unpacker unpacker(texts[i]);
      const bool collective = unpacker.number() != 0;
      errors.push_back({everyone.ranks()[i], unpacker.text(), collective});
    }
  }
  return errors;
}

}  // namespace

void Runner::fail(const std::string& name, const std::vector<RankError>& errors, std::exception_ptr own) const {
  // Where it was thrown it is most telling, unless it says only that another rank did not come.
  const auto is_own = [&](const RankError& error) { return error.rank == everyone_.rank() && !error.collective; };
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
      text += (ranks.empty() ? "" : "; ") + std::string("rank ") + std::to_string(error.rank) + " raised: " + error.text;
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
  if (const auto errors = errors_of(everyone_, error); !errors.empty()) {
    fail(name + ", reference", errors, error.error);
  }
  return known_.emplace(key, std::move(outcome)).first->second;
}

Ran Runner::run(const Case& what, const std::optional<Break>& broken, const GradCheck::Raised& raised) {
  Ran ran;
  Outcome mine;
  std::vector<Contribution> seen;
  bool hit = false;
  const auto error = caught([&] {
    if (is_in(what.topology, everyone_.rank())) {
      std::optional<Watch> watch;
      broken ? watch.emplace(std::vector{*broken}) : watch.emplace();
      Case here = what;
      here.was_cut = was_cut_;
      mine = distributed_(here);
      check(mine);
      seen = watch->seen();
      hit = watch->hit();
    }
  });
  ran.own = error.error;
  if (error.error && !error.collective && raised) {
    raised(error.text);
  }
  ran.errors = errors_of(everyone_, error);
  if (!ran.errors.empty()) {
    return ran;
  }
  ran.united = unite(everyone_, mine);
  if (broken) {
    ran.hit = anywhere("gradcheck hits", hit);
  } else {
    ran.seen = unite(everyone_, seen);
  }
  return ran;
}

Ran Runner::distributed(const Case& what, const std::string& name) {
  auto ran = run(what, std::nullopt, raised_);
  if (!ran.errors.empty()) {
    fail(name, ran.errors, ran.own);
  }
  return ran;
}

Ran Runner::broken(const Case& what, const Break& broken) {
  return run(what, broken, nullptr);
}

Ran Runner::attempt(const Case& what) {
  return run(what, std::nullopt, nullptr);
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
