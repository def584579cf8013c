#include "dist/gradcheck/alike_rows.h"

#include "dist/gradcheck/fit.h"
#include "dist/gradcheck/sizes.h"
#include "dist/gradcheck/variants.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <array>
#include <set>

namespace retape::dist::detail {

namespace {

bool is_uneven_and_full(const Pool& pool) {
  return pool.size() > 1 && is_uneven(pool) && !has_empty_shard(pool);
}

// What a rank's rows are of an even share, in the first uneven pool that has it; 1 if there is
// none.
double share_of(const Topology& topology, int rank) {
  for (const auto& pool : topology.pools()) {
    const int index = pool.index_of(rank);
    if (index >= 0 && is_uneven_and_full(pool)) {
      return static_cast<double>(pool.shards[index].size()) * pool.size() /
          static_cast<double>(topology.rows());
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

// The same ranks with the first of the rows, each with some; none where that is all rows. Two
// numbers of rows, one after the other: data that repeats has the same mean in as many rows as it
// repeats after, and not in one row more.
std::optional<std::array<Topology, 2>> with_fewer_rows(const Topology& topology) {
  int64_t rows = topology.rows() / 2;
  for (const auto& pool : topology.pools()) {
    rows = std::max<int64_t>(rows, pool.size());
  }
  if (rows + 1 >= topology.rows()) {
    return std::nullopt;
  }
  const auto cut = [&](int64_t to) {
    auto pools = topology.pools();
    for (auto& pool : pools) {
      pool.shards = even_shards(to, pool.size());
    }
    return Topology(to, std::move(pools), topology.groups());
  };
  return std::array{cut(rows), cut(rows + 1)};
}

// `factor` times the gradients of `reference`, all of them.
bool are_times(double factor, const Outcome& reference, const Outcome& found, double tolerance) {
  bool any = false;
  for (const auto& [name, gradient] : reference.gradients) {
    if (!gradient.defined() || largest(gradient) == 0) {
      continue;
    }
    const auto it = found.gradients.find(name);
    if (it == found.gradients.end() || it->second.sizes() != gradient.sizes()) {
      return false;
    }
    const auto fitted = fit(gradient, as_double(it->second) / factor);
    if (!fitted.finite || fitted.error > tolerance) {
      return false;
    }
    any = true;
  }
  return any;
}

enum class Found : uint8_t { Alike, Different, Unknown };

struct AlikeTerm {
  std::string name;
  std::string measured;
};

constexpr const char* kWeighted =
    "each rank's part times or divided by its share of rows makes the same gradients";

class Trials {
 public:
  Trials(
      Runner& runner,
      const NamedTopology& uneven,
      const GradCheckOptions& options,
      const SelfTest::Watcher& watcher)
      : runner_(runner),
        watcher_(watcher),
        all_(plan_all(uneven, {}, options)),
        terms_(plan_alone(uneven, {}, options)),
        share_(share_of(uneven.topology, runner.rank())) {
    if (terms_.empty()) {
      terms_.push_back(all_);
    }
  }

  // Terms whose gradients do not change; none once a rank has raised.
  std::vector<AlikeTerm> run() {
    std::vector<AlikeTerm> alike;
    watcher_.expect(static_cast<int>(terms_.size()));
    for (const auto& planned : terms_) {
      watcher_.advance("are rows alike, " + planned.name());
      std::string measured = kWeighted;
      const auto found = try_one(planned, measured);
      if (found == Found::Unknown) {
        return {};
      }
      if (found == Found::Alike) {
        alike.push_back({planned.run.terms, std::move(measured)});
      }
    }
    return alike;
  }

 private:
  Found try_one(const Planned& planned, std::string& measured) {
    const auto plain = runner_.attempt(planned.what);
    if (!plain.errors.empty()) {
      return Found::Unknown;
    }
    for (const double factor : {1 / share_, share_}) {
      const auto breaks = weighted(plain.seen, factor);
      if (breaks.empty()) {
        return try_fewer_rows(planned, measured);  // nothing goes through here
      }
      const auto ran = runner_.broken(planned.what, breaks);
      if (!ran.errors.empty()) {
        return Found::Unknown;
      }
      std::vector<GradRow> rows;
      if (!differs(runner_, planned, all_, ran, rows)) {
        return Found::Alike;
      }
    }
    return Found::Different;
  }

  Found try_fewer_rows(const Planned& planned, std::string& measured) {
    const auto& topology = planned.run.topology.topology;
    const auto fewer = with_fewer_rows(topology);
    if (!fewer) {
      return Found::Unknown;
    }
    const auto& reference = runner_.reference(planned.what, planned.name());
    for (const auto& each : *fewer) {
      auto what = planned.what;
      what.topology = each;
      const auto ran = runner_.attempt(what);
      if (!ran.errors.empty()) {
        return Found::Unknown;
      }
      // Divided by how many rows there are, or by a number that is not counted.
      const double share = static_cast<double>(each.rows()) / static_cast<double>(topology.rows());
      const auto is = [&](double factor) {
        return are_times(factor, reference, ran.united.outcome, planned.run.tolerance);
      };
      if (!runner_.decide(runner_.first() && (is(1) || is(share)))) {
        return Found::Different;
      }
    }
    measured = "the first " + std::to_string(fewer->front().rows()) + " and the first " +
        std::to_string(fewer->back().rows()) + " of " + std::to_string(topology.rows()) +
        " rows have the mean gradient of all";
    return Found::Alike;
  }

  Runner& runner_;
  const SelfTest::Watcher& watcher_;
  Planned all_;
  std::vector<Planned> terms_;
  double share_;
};

}  // namespace

const NamedTopology* uneven_one(const std::vector<NamedTopology>& topologies) {
  const auto found = std::find_if(
      topologies.begin(), topologies.end(), [](const NamedTopology& named) {
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
  for (const auto& [term, measured] : Trials(runner, uneven, options, watcher).run()) {
    report.notes.push_back(
        "term \"" + term + "\" with " + uneven.name + ": " + measured +
        ". Its rows are alike, or it does not depend " +
        "on them, and a mean of each rank's mean would not be seen. Fix: rows that differ.");
  }
}

}  // namespace retape::dist::detail
