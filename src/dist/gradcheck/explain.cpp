#include "dist/gradcheck/explain.h"

#include "dist/gradcheck/guess.h"
#include "dist/gradcheck/number_text.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>

namespace retape::dist::detail {

namespace {

using Kind = Verdict::Kind;

constexpr double kNoFactor = 1e-9;  // a residual up to this is rounding, in any dtype
constexpr double kOne = 1e-6;       // an alpha so close to one is one
// Residuals that rounding of float32 leaves in float64: some eps, added up.
constexpr double kFloat32 = 1e-5;

constexpr const char* kCandidates = ". Candidates: ";
constexpr const char* kAny =
    "a mean of each rank's mean or each microbatch's (count_global), a function of a rank's own sum "
    "(global_residual), rows that a rank drops or has twice, a part that is missing, or state of an earlier run";
constexpr const char* kRandom =
    "a term that draws random numbers may draw others on ranks (row_random.h draws by row), ";
constexpr const char* kRagged =
    "a mean of each rank's mean or each microbatch's (count_global), rows that are dropped or padded where shards "
    "differ, or state of an earlier run";
constexpr const char* kEmpty =
    "a count of at least 1 for 0 rows, an average that counts a rank without rows, a step or a sum that such a rank "
    "skips, or state of an earlier run";
constexpr const char* kNarrow =
    "a part of the step that computes or sends in float32 (a cast, a buffer, a wire), or a sum of very different "
    "numbers in another order";
constexpr const char* kDtype =
    "this dtype rounds more than the tolerance allows for, or a part of the step has a narrower one";

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "" : " or ") + words[i];
  }
  return text;
}

bool is_a_factor(const GradRow& row) {
  return row.residual <= std::max(kNoFactor, row.tolerance);
}

bool is_one(double alpha) {
  return std::abs(alpha - 1) <= kOne;
}

// One part of several, where no pool has so many ranks: a step that takes its rows in as many microbatches, of which
// the check knows nothing.
std::string microbatches_text(const GradRow& row) {
  constexpr double kMost = 1024;
  const double parts = std::round(1 / row.alpha);
  const bool half = std::find(row.guesses.begin(), row.guesses.end(), "1 / 2") != row.guesses.end();
  const bool named = !row.guesses.empty() && !half;
  if (named || !(parts >= 2 && parts <= kMost) || std::abs(row.alpha * parts - 1) > within(row)) {
    return "";
  }
  return (half ? ", or " : ". Candidate: ") + std::string("1 / microbatches if there are ") + short_number(parts);
}

std::string factor_text(const GradRow& row) {
  const auto times = short_number(row.alpha) + " times the reference";
  const auto sizes = row.guesses.empty() ? ", not explained by any product of pool sizes" : ": " + joined(row.guesses);
  return times + sizes + microbatches_text(row);
}

bool rounds_like_float32(const GradRow& row, const Run& run) {
  return run.precision.dtype == at::kDouble && is_one(row.alpha) && row.residual <= kFloat32;
}

// Replaces the candidates of any difference, or adds these.
void narrow_down(GradRow& row, const std::string& measured, const std::string& candidates) {
  const std::string_view any = kAny;
  const auto text = measured + kCandidates + candidates;
  if (const auto at = row.reason.find(any); at != std::string::npos) {
    const auto begin = row.reason.rfind(kCandidates, at);
    row.reason.replace(begin, at + any.size() - begin, ", " + text);
  } else {
    row.reason += (row.reason.empty() ? "" : "; ") + text;
  }
}

// The same tensor in other runs.
class Neighbours {
 public:
  explicit Neighbours(const std::vector<GradRow>& rows) {
    for (const auto& row : rows) {
      kinds_[key(row, row.topology, row.dtype)] = row.kind;
    }
  }

  bool is(Kind kind, const GradRow& row, const std::string& topology, const std::string& dtype) const {
    const auto it = kinds_.find(key(row, topology, dtype));
    return it != kinds_.end() && it->second == kind;
  }

  // In a ragged variant of `from`.
  bool differs_in_ragged(
      const GradRow& row, const std::string& from, const std::map<std::string, Origin>& variants) const {
    return std::any_of(variants.begin(), variants.end(), [&](const auto& each) {
      const auto& [name, origin] = each;
      return origin.from == from && !origin.empty && is(Kind::Different, row, name, row.dtype);
    });
  }

 private:
  using Key = std::tuple<std::string, std::string, std::string, std::string, std::string>;
  static Key key(const GradRow& row, const std::string& topology, const std::string& dtype) {
    return {topology, dtype, row.terms, row.what, row.tensor};
  }

  std::map<Key, Kind> kinds_;
};

}  // namespace

double within(const GradRow& row) {
  return std::max(kOne, std::min(row.tolerance, 1e-2));
}

std::string explain(const GradRow& row, const Run& run) {
  if (is_a_factor(row)) {
    return is_one(row.alpha) ? "no factor, and more than rounding: residual " + error_number(row.residual)
                             : factor_text(row);
  }
  const auto measured =
      "no factor explains it (alpha " + short_number(row.alpha) + ", residual " + short_number(row.residual) + ")";
  if (rounds_like_float32(row, run)) {
    return measured + ", and float32 rounds like that" + kCandidates + kNarrow;
  }
  return measured + kCandidates + (run.random ? kRandom : "") + kAny;
}

void guess_from_all_topologies(
    std::vector<GradRow>& rows, const std::vector<NamedTopology>& topologies, int microbatches) {
  std::map<std::string, const Topology*> by_name;
  for (const auto& [name, topology] : topologies) {
    by_name[name] = &topology;
  }
  using Key = std::tuple<std::string, std::string, std::string, std::string>;
  const auto key = [](const GradRow& row) { return Key{row.dtype, row.terms, row.what, row.tensor}; };
  std::map<Key, std::vector<Factor>> factors;
  for (const auto& row : rows) {
    if (row.kind != Kind::Vacuous && is_a_factor(row) && by_name.count(row.topology) > 0) {
      factors[key(row)].push_back({row.alpha, *by_name[row.topology], microbatches});
    }
  }
  for (auto& row : rows) {
    if (row.kind != Kind::Different || !is_a_factor(row) || is_one(row.alpha)) {
      continue;
    }
    const auto before = factor_text(row);
    if (auto better = guesses(factors[key(row)], row.what == "norm", within(row)); !better.empty()) {
      row.guesses = std::move(better);
      if (const auto at = row.reason.find(before); at != std::string::npos) {
        row.reason.replace(at, before.size(), factor_text(row));
      }
    }
  }
}

void explain_by_neighbours(std::vector<GradRow>& rows, const std::map<std::string, Origin>& variants) {
  const Neighbours neighbours(rows);
  const auto decides = Precision().text();
  for (auto& row : rows) {
    if (row.kind != Kind::Different) {
      continue;
    }
    const auto variant = variants.find(row.topology);
    if (variant != variants.end() && neighbours.is(Kind::Equal, row, variant->second.from, row.dtype)) {
      const auto& from = variant->second.from;
      // Shards beside an empty one are uneven, too: what ragged ones show is not because of it.
      const bool empty = variant->second.empty && !neighbours.differs_in_ragged(row, from, variants);
      const auto only = empty ? "only where a rank has no rows" : "only with ragged shards";
      narrow_down(row, std::string(only) + " (" + from + " is equal)", empty ? kEmpty : kRagged);
    }
    if (row.dtype != decides && neighbours.is(Kind::Equal, row, row.topology, decides)) {
      narrow_down(row, decides + " is equal", kDtype);
    }
  }
}

}  // namespace retape::dist::detail
