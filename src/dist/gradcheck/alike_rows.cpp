#include "dist/gradcheck/alike_rows.h"

#include "dist/gradcheck/sizes.h"
#include "dist/gradcheck/variants.h"

#include <algorithm>
#include <set>

namespace retape::dist::detail {

namespace {

using Kind = Verdict::Kind;

bool is_uneven_and_full(const Pool& pool) {
  return pool.size() > 1 && is_uneven(pool) && !has_empty_shard(pool);
}

// What a rank's rows are of an even share, in the first uneven pool that has it; 1 if there is none.
double share_of(const Topology& topology, int rank) {
  for (const auto& pool : topology.pools()) {
    const int index = pool.index_of(rank);
    if (index >= 0 && is_uneven_and_full(pool)) {
      return static_cast<double>(pool.shards[index].size()) * pool.size() / static_cast<double>(topology.rows());
    }
  }
  return 1;
}

std::vector<Break> weighted(const std::vector<Contribution>& seen, double factor) {
  std::set<std::string> groups;
  std::vector<Break> breaks;
  for (const auto& at : seen) {
    if (at.place == Place::Sum && at.size > 1 && groups.insert(at.group).second) {
      breaks.push_back({{Place::Sum, "*", at.group, at.size}, Mutation::Weighted, factor});
    }
  }
  return breaks;
}

enum class Found : uint8_t { Alike, Different, Unknown };

class Trials {
 public:
  Trials(Runner& runner, const NamedTopology& uneven, const GradCheckOptions& options, const SelfTest::Watcher& watcher)
      : runner_(runner), watcher_(watcher), all_(plan_all(uneven, {}, options)), terms_(plan_alone(uneven, {}, options)),
        share_(share_of(uneven.topology, runner.rank())) {
    if (terms_.empty()) {
      terms_.push_back(all_);
    }
  }

  // Terms whose gradients weights by rows do not change; none once a rank has raised.
  std::vector<std::string> run() {
    std::vector<std::string> alike;
    watcher_.expect(static_cast<int>(terms_.size()));
    for (const auto& planned : terms_) {
      watcher_.advance("self-test, rows weighted, " + planned.name());
      const auto found = try_one(planned);
      if (found == Found::Unknown) {
        return {};
      }
      if (found == Found::Alike) {
        alike.push_back(planned.run.terms);
      }
    }
    return alike;
  }

 private:
  Found try_one(const Planned& planned) {
    const auto plain = runner_.attempt(planned.what);
    if (!plain.errors.empty()) {
      return Found::Unknown;
    }
    for (const double factor : {1 / share_, share_}) {
      const auto breaks = weighted(plain.seen, factor);
      if (breaks.empty()) {
        return Found::Different;  // nothing goes through here
      }
      const auto ran = runner_.broken(planned.what, breaks);
      if (!ran.errors.empty()) {
        return Found::Unknown;
      }
      if (!differs(planned, ran)) {
        return Found::Alike;
      }
    }
    return Found::Different;
  }

  bool differs(const Planned& planned, const Ran& ran) {
    const auto& scale = runner_.reference(all_.what, all_.name());
    const auto& reference = runner_.reference(planned.what, planned.name());
    bool different = false;
    if (runner_.first()) {
      const auto rows = judge(planned.run, reference, ran.united, scale);
      different = std::any_of(rows.begin(), rows.end(), [](const GradRow& row) { return row.kind == Kind::Different; });
    }
    return runner_.decide(different);
  }

  Runner& runner_;
  const SelfTest::Watcher& watcher_;
  Planned all_;
  std::vector<Planned> terms_;
  double share_;
};

}  // namespace

const NamedTopology* uneven_one(const std::vector<NamedTopology>& topologies) {
  const auto found = std::find_if(topologies.begin(), topologies.end(), [](const NamedTopology& named) {
    const auto& pools = named.topology.pools();
    return std::any_of(pools.begin(), pools.end(), is_uneven_and_full);
  });
  return found == topologies.end() ? nullptr : &*found;
}

void note_alike_rows(
    Runner& runner,
    const NamedTopology& uneven,
    const GradCheckOptions& options,
    const SelfTest::Watcher& watcher,
    GradReport& report) {
  for (const auto& term : Trials(runner, uneven, options, watcher).run()) {
    report.notes.push_back(
        "term \"" + term + "\" with " + uneven.name + ": each rank's part times or divided by its share of rows makes " +
        "the same gradients. Its rows are alike, or it does not depend on them, and a mean of each rank's mean would " +
        "not be seen. Fix: rows that differ.");
  }
}

}  // namespace retape::dist::detail
