#include "dist/gradcheck/self_test.h"

#include "dist/gradcheck/sizes.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace retape::dist::detail {

namespace {

using Kind = Verdict::Kind;

bool is_pool(const Topology& topology, const std::string& name) {
  const auto& pools = topology.pools();
  return std::any_of(
      pools.begin(), pools.end(), [&](const Pool& pool) { return pool.name == name; });
}

bool needs_others(Mutation mutation, Place place) {
  return (mutation != Mutation::Drop && mutation != Mutation::Double) ||
      (mutation == Mutation::Drop && place == Place::Count);
}

// Nothing to break: there are no others, or no replicas that could be counted.
bool is_equivalent(Mutation mutation, const Contribution& at) {
  return (needs_others(mutation, at.place) && at.size == 1) ||
      (mutation == Mutation::EveryReplica && at.count == 0);
}

std::string raised(const RankError& error) {
  return "rank " + std::to_string(error.rank) +
      " raised: " + error.text.substr(0, error.text.find('\n'));
}

}  // namespace

std::vector<Trial> trials_at(
    const Contribution& at,
    const std::vector<size_t>& runs,
    const Topology& topology,
    int& equivalent) {
  std::vector<Trial> trials;
  for (const auto mutation : mutations_of(at.place)) {
    const auto predicted = predicted_ratio(mutation, at);
    if (predicted == 1.0 || is_equivalent(mutation, at)) {
      ++equivalent;
      continue;
    }
    GradMutant mutant;
    mutant.at = at;
    mutant.mutation = mutation;
    mutant.predicted = predicted;
    trials.push_back({mutant, 1, runs});
  }
  if (at.place != Place::Count) {
    return trials;
  }
  const bool known = is_pool(topology, at.group);
  for (const auto& size : sizes_of(topology)) {
    const bool own = std::find(size.pools.begin(), size.pools.end(), at.group) != size.pools.end();
    if (own || (!known && size.value == at.size)) {
      continue;
    }
    GradMutant mutant;
    mutant.at = at;
    mutant.mutation = Mutation::OtherCount;
    mutant.pool = size.pools.front();
    mutant.predicted = predicted_ratio(mutant.mutation, at, size.value);
    trials.push_back({mutant, static_cast<double>(size.value), runs});
  }
  return trials;
}

bool sums_the_dead(const Contribution& at, const std::vector<std::string>& may_be_dead) {
  if (at.place != Place::Sum && at.place != Place::Once) {
    return false;  // its name is not a tensor's
  }
  constexpr std::string_view kBetween = ", ";
  std::string_view left = at.contents.empty() ? std::string_view(at.name) : at.contents;
  while (true) {
    const auto end = left.find(kBetween);
    if (!matches(std::string(left.substr(0, end)), may_be_dead)) {
      return false;
    }
    if (end == std::string_view::npos) {
      return true;
    }
    left.remove_prefix(end + kBetween.size());
  }
}

void note_fit(GradMutant& mutant, const std::vector<GradRow>& rows) {
  const GradRow* best = nullptr;
  // Norms follow from gradients.
  const auto distance = [&](const GradRow& row) {
    const double far = mutant.predicted ? std::abs(row.alpha - *mutant.predicted) + row.residual
                                        : -row.error;
    return std::pair(row.what != "gradient", far);
  };
  for (const auto& row : rows) {
    if (row.kind == Kind::Different && std::isfinite(row.alpha) &&
        (!best || distance(row) < distance(*best))) {
      best = &row;
    }
  }
  if (best) {
    mutant.fitted = best->alpha;
    mutant.tensor = best->tensor;
  }
}

bool differs(
    Runner& runner,
    const Planned& planned,
    const Planned& all,
    const Ran& ran,
    std::vector<GradRow>& rows) {
  const auto& scale = runner.reference(all.what, all.name());
  const auto& reference = runner.reference(planned.what, planned.name());
  if (runner.first()) {
    rows = judge(planned.run, reference, ran.united, scale);
  }
  return runner.decide(any_is(Kind::Different, rows));
}

SelfTest::SelfTest(
    Runner& runner, const NamedTopology& topology, const GradCheckOptions& options, Watcher watcher)
    : runner_(runner),
      topology_(topology),
      may_be_dead_(options.may_be_dead),
      watcher_(std::move(watcher)) {
  runs_ = plan_alone(topology, {}, options);
  all_ = runs_.size();
  runs_.push_back(plan_all(topology, {}, options));
  if (auto steps = plan_steps(topology, {}, options)) {
    runs_.push_back(std::move(*steps));
  }
}

bool SelfTest::differs(size_t run, const Ran& ran, std::vector<GradRow>& rows) {
  return detail::differs(runner_, runs_[run], runs_[all_], ran, rows);
}

bool SelfTest::list(GradReport& report) {
  std::vector<std::pair<Contribution, std::vector<size_t>>> seen;
  std::vector<GradRow> rows;
  watcher_.expect(static_cast<int>(runs_.size()));
  for (size_t i = 0; i < runs_.size(); ++i) {
    watcher_.advance("self-test, " + runs_[i].name());
    const auto ran = runner_.distributed(runs_[i].what, runs_[i].name());
    if (differs(i, ran, rows)) {
      report.vacuous.push_back(
          runs_[i].name() +
          ": run again, it comes out different. Fix: functions that begin anew each time.");
      return false;
    }
    for (const auto& each : ran.seen) {
      const auto known = std::find_if(
          seen.begin(), seen.end(), [&](const auto& pair) { return pair.first == each; });
      if (known == seen.end()) {
        seen.push_back({each, {i}});
      } else {
        merge(known->first, each);
        known->second.push_back(i);
      }
    }
  }
  std::vector<std::string> skipped;
  for (const auto& [at, runs] : seen) {
    if (sums_the_dead(at, may_be_dead_)) {
      skipped.push_back(at.name);
      continue;
    }
    const auto found = trials_at(at, runs, topology_.topology, report.equivalent);
    trials_.insert(trials_.end(), found.begin(), found.end());
  }
  note_skipped(skipped, report);
  if (trials_.empty() && skipped.empty()) {
    report.vacuous.push_back(
        "nothing was summed through retape::dist, so the self-test has nothing to break, and that "
        "a wrong sum "
        "would be noticed is not shown. Fix: SumHook under DDP, SumReducer elsewhere, or "
        "--no-self-test.");
  }
  return !trials_.empty();
}

void SelfTest::note_skipped(const std::vector<std::string>& names, GradReport& report) const {
  if (names.empty()) {
    return;
  }
  if (trials_.empty()) {
    report.vacuous.push_back(
        "every sum through retape::dist is of tensors that are declared may_be_dead, so the "
        "self-test has nothing to "
        "break. Fix: declare fewer.");
    return;
  }
  std::string text;
  for (const auto& name : names) {
    text += (text.empty() ? "\"" : ", \"") + name + "\"";
  }
  report.notes.push_back("the self-test skips sums of tensors that may be dead: " + text + ".");
}

// A rank that raised may have left others waiting in groups that are broken since, and then every
// mutant raises, whether it would be noticed or not.
bool SelfTest::works_as_before(size_t run) {
  const auto ran = runner_.attempt(runs_[run].what);
  std::vector<GradRow> rows;
  return ran.errors.empty() && !differs(run, ran, rows);
}

// False: there is no sense in going on.
bool SelfTest::try_one(Trial& trial) {
  auto& mutant = trial.mutant;
  bool hit = false;
  for (const auto run : trial.runs) {
    const auto ran = runner_.broken(runs_[run].what, {{mutant.at, mutant.mutation, trial.factor}});
    if (!ran.errors.empty()) {
      mutant.killed = true;
      mutant.terms = runs_[run].run.terms;
      mutant.reason = raised(ran.errors.front());
      return works_as_before(run);
    }
    hit |= ran.hit;
    std::vector<GradRow> rows;
    if (!differs(run, ran, rows)) {
      continue;
    }
    auto found = mutant;
    found.killed = true;
    found.terms = runs_[run].run.terms;
    note_fit(found, rows);
    // Another run may show it alone.
    if (!mutant.killed || found.as_predicted()) {
      mutant = found;
    }
    if (runner_.decide(!mutant.predicted || mutant.as_predicted())) {
      return true;
    }
  }
  if (mutant.killed) {
    return true;
  }
  if (!hit) {
    mutant.reason = "the contribution did not come by again";
  } else if (mutant.predicted == 1.0) {
    mutant.reason = "\"" + mutant.pool + "\" has as many ranks as \"" + mutant.at.group + "\" here";
  } else {
    mutant.reason = "every comparison is as without it";
  }
  return true;
}

bool SelfTest::run(GradReport& report) {
  if (!list(report)) {
    return false;
  }
  report.mutated = topology_.name;
  watcher_.expect(static_cast<int>(trials_.size()));
  for (size_t i = 0; i < trials_.size(); ++i) {
    auto& trial = trials_[i];
    watcher_.advance(
        std::string("self-test, ") + text(trial.mutant.mutation) + " at " + trial.mutant.at.name);
    const bool goes_on = try_one(trial);
    report.mutants.push_back(trial.mutant);
    if (!goes_on) {
      report.vacuous.push_back(
          "the self-test ended with " + std::to_string(trials_.size() - i - 1) +
          " mutants left: a rank raised, and since then the step itself raises or differs. Groups "
          "in which others "
          "waited for it are broken.");
      return false;
    }
  }
  const auto lives = report.mutants.size() - report.killed();
  if (lives > 0) {
    report.vacuous.push_back(
        std::to_string(lives) + " of " + std::to_string(report.mutants.size()) +
        " mutants of the self-test were not noticed: what they break could be wrong.");
  }
  return true;
}

}  // namespace retape::dist::detail
