#include <retape/dist/gradcheck.h>

#include "dist/collective_queue.h"
#include "dist/gradcheck/absence.h"
#include "dist/gradcheck/alike_rows.h"
#include "dist/gradcheck/explain.h"
#include "dist/gradcheck/number_text.h"
#include "dist/gradcheck/self_test.h"
#include "dist/gradcheck/sizes.h"
#include "dist/gradcheck/variants.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace retape::dist {

using Kind = Verdict::Kind;

namespace detail {

namespace {

// One call of GradCheck::run.
class Session {
 public:
  Session(
      const Group& everyone,
      const GradCheck::Step& reference,
      const GradCheck::Step& distributed,
      const GradCheckOptions& options,
      const GradCheck::Progress& progress,
      const GradCheck::Raised& raised)
      : everyone_(everyone),
        runner_(everyone, reference, distributed, raised, options.replicated),
        options_(options),
        progress_(progress) {}

  GradReport run();

 private:
  void check(const NamedTopology& topology, const Precision& precision);
  const Outcome& check(const Planned& planned, const Outcome* scale);
  void check_steps(const Planned& planned, const Outcome& scale);
  bool differs_at(const NamedTopology& topology) const;
  // False: groups may be broken, or ranks differ as they are.
  bool self_test(const SelfTest::Watcher& watcher);
  void test_what_could_have_been_seen();
  void note_what_was_not_compared();
  Kind kind() const;
  void advance(const std::string& what);

  const Group& everyone_;
  Runner runner_;
  const GradCheckOptions& options_;
  const GradCheck::Progress& progress_;
  std::vector<NamedTopology> topologies_;
  AbsenceNotes absences_;
  GradReport report_;
  int done_ = 0;
  int total_ = 0;
};

void Session::advance(const std::string& what) {
  if (progress_) {
    progress_(done_, std::max(total_, done_ + 1), what);
  }
  ++done_;
}

const Outcome& Session::check(const Planned& planned, const Outcome* scale) {
  advance(planned.name());
  const auto& reference = runner_.reference(planned.what, planned.name());
  const auto ran = runner_.distributed(planned.what, planned.name());
  if (runner_.first()) {
    absences_.add(planned.run.topology, ran.united);
    for (auto& row : judge(planned.run, reference, ran.united, scale ? *scale : reference)) {
      report_.rows.push_back(std::move(row));
    }
  }
  return reference;
}

void Session::check_steps(const Planned& planned, const Outcome& scale) {
  const auto& reference = check(planned, &scale);
  if (runner_.first() && planned.run.precision.decides() && reference.parameters.empty()) {
    report_.vacuous.push_back(planned.name() + ": the reference gives no parameters.");
  }
}

void Session::check(const NamedTopology& topology, const Precision& precision) {
  const auto all = plan_all(topology, precision, options_);
  Terms terms{options_.terms, {}, &check(all, nullptr)};
  const auto alone = plan_alone(topology, precision, options_);
  for (const auto& planned : alone) {
    terms.alone.push_back(&check(planned, terms.all));
  }
  if (alone.empty()) {
    terms.alone.push_back(terms.all);
  }
  if (runner_.first()) {
    judge_visibility(all.run, terms, report_.rows);
  }
  if (const auto steps = plan_steps(topology, precision, options_)) {
    check_steps(*steps, *terms.all);
  }
  runner_.forget();
}

bool Session::differs_at(const NamedTopology& topology) const {
  return runner_.decide(
      std::any_of(report_.rows.begin(), report_.rows.end(), [&](const GradRow& row) {
        return row.topology == topology.name && row.kind == Kind::Different;
      }));
}

bool Session::self_test(const SelfTest::Watcher& watcher) {
  const auto* place = options_.mutations ? most_different(topologies_) : nullptr;
  if (!place) {
    report_.notes.push_back(
        options_.mutations ? "no self-test: no topology has several ranks."
                           : "no self-test: it was not asked for.");
    return true;
  }
  if (differs_at(*place)) {
    report_.notes.push_back(
        "no self-test: with " + place->name + " ranks differ from the reference as it is.");
    return false;
  }
  return SelfTest(runner_, *place, options_, watcher).run(report_);
}

// The note on rows must not depend on the self-test: a mean of means passes without one, too.
void Session::test_what_could_have_been_seen() {
  const SelfTest::Watcher watcher{
      [&](int more) { total_ += more; }, [&](const std::string& what) { advance(what); }};
  const auto* uneven = uneven_one(topologies_);
  if (self_test(watcher) && uneven && !differs_at(*uneven)) {
    note_alike_rows(runner_, *uneven, options_, watcher, report_);
  }
}

void Session::note_what_was_not_compared() {
  for (auto& note : absences_.notes()) {
    report_.notes.push_back(std::move(note));
  }
  const auto has = [&](const char* what) {
    return std::any_of(report_.rows.begin(), report_.rows.end(), [&](const GradRow& row) {
      return row.what == what;
    });
  };
  if (!has("norm")) {
    report_.notes.push_back("no clip norm was compared: the step returns none.");
  }
  if (options_.steps == 0) {
    report_.notes.push_back("no step of the optimizer was compared: steps is 0.");
  }
  if (options_.microbatches == 1) {
    report_.notes.push_back("no microbatches were compared: microbatches is 1.");
  } else if (!runner_.anywhere("gradcheck microbatches", runner_.was_cut())) {
    report_.notes.push_back(
        "microbatches is " + std::to_string(options_.microbatches) +
        ", and no rank has asked for them (Case::cut): a mean of their means would not be seen.");
  }
  for (const auto& precision : precisions(options_)) {
    if (precision.wire && !wire_was_used(report_.rows, precision.dtype, *precision.wire)) {
      report_.notes.push_back(
          precision.text() + " changes no number: the step does not look at the wire of its case.");
    }
  }
}

Kind Session::kind() const {
  const auto& rows = report_.rows;
  if (any_is(Kind::Different, rows)) {
    return Kind::Different;
  }
  const bool vacuous = rows.empty() || any_is(Kind::Vacuous, rows) || !report_.vacuous.empty();
  return vacuous ? Kind::Vacuous : Kind::Equal;
}

GradReport Session::run() {
  everyone_.agree("gradcheck", text_of(options_));
  const auto variants = with_variants(options_);
  topologies_ = variants.topologies;
  const auto all = precisions(options_);
  for (const auto& precision : all) {
    total_ += runs_in(precision, options_) * static_cast<int>(topologies_.size());
  }
  report_.vacuous = vacuous_topologies(topologies_);
  report_.notes = notes_on(topologies_);
  for (const auto& topology : topologies_) {
    for (const auto& precision : all) {
      check(topology, precision);
    }
  }
  guess_from_all_topologies(report_.rows, topologies_, options_.microbatches);
  explain_by_neighbours(report_.rows, variants.made_from);
  test_what_could_have_been_seen();
  note_what_was_not_compared();
  const auto decided = at::full({1}, static_cast<int64_t>(kind()), at::kLong);
  everyone_.broadcast("gradcheck verdict", decided);
  report_.kind = static_cast<Kind>(decided.item<int64_t>());
  if (progress_) {
    progress_(done_, done_, "done");
  }
  return runner_.first() ? std::move(report_) : GradReport{report_.kind, {}, {}, {}, {}, {}, 0};
}

[[noreturn]] void refuse(const std::string& text) {
  throw UsageError("[GradCheck] " + text);
}

template <typename Items>
void check_names(const char* what, const Items& items) {
  if (items.empty()) {
    refuse("no " + std::string(what) + ". Fix: at least one.");
  }
  std::set<std::string> names;
  for (const auto& item : items) {
    if (!names.insert(item.name).second) {
      refuse("two of the name \"" + item.name + "\": each " + what + " has its own.");
    }
  }
}

}  // namespace

}  // namespace detail

GradCheck::GradCheck(Group everyone, Step reference, Step distributed, GradCheckOptions options)
    : everyone_(std::move(everyone)),
      reference_(std::move(reference)),
      distributed_(std::move(distributed)),
      options_(std::move(options)) {
  detail::check_names("term", options_.terms);
  detail::check_names("topology", options_.topologies);
  for (const auto& term : options_.terms) {
    if (term.name == "all") {
      detail::refuse("a term is called \"all\", as the sum of terms is. Fix: another name.");
    }
    if (term.coefficient == 0 || !std::isfinite(term.coefficient)) {
      detail::refuse(
          "the coefficient of \"" + term.name + "\" is " + detail::short_number(term.coefficient) +
          ". Fix: another, or leave the term out.");
    }
  }
  for (const auto& [dtype, allowed] : options_.tolerance) {
    if (!(allowed >= 0 && std::isfinite(allowed))) {
      detail::refuse(
          std::string("the tolerance of ") + c10::toString(dtype) + " is " +
          detail::short_number(allowed) + ": expected a number of at least 0.");
    }
  }
  if (options_.steps < 0) {
    detail::refuse("steps is " + std::to_string(options_.steps) + ": expected 0 or more.");
  }
  if (options_.microbatches < 1) {
    detail::refuse(
        "microbatches is " + std::to_string(options_.microbatches) + ": expected 1 or more.");
  }
  for (const auto& precision : detail::precisions(options_)) {
    detail::tolerance(precision, options_);
  }
  for (const auto& [name, topology] : options_.topologies) {
    if (topology.world_size() > everyone_.size()) {
      detail::refuse(
          "topology \"" + name + "\" has " + std::to_string(topology.world_size()) +
          " ranks, and \"" + everyone_.name() + "\" " + std::to_string(everyone_.size()) +
          ". Fix: start as many.");
    }
  }
}

GradReport GradCheck::run(const Progress& progress, const Raised& raised) const {
  try {
    return detail::Session(everyone_, reference_, distributed_, options_, progress, raised).run();
  } catch (const std::exception&) {
    throw;  // which every rank has heard of
  } catch (...) {
    // An interrupt. Others wait for the outcome of this rank, or for it in a group of the step's:
    // any of them.
    detail::CollectiveQueue::abandon_all();
    throw;
  }
}

}  // namespace retape::dist
