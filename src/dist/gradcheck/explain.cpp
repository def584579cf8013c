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
    "a mean of each rank's mean or each microbatch's (count_global), a function of a rank's own "
    "sum "
    "(global_residual), rows that a rank drops or has twice, a part that is missing, or state of "
    "an earlier run";
constexpr const char* kRandom =
    "a term that draws random numbers may draw others on ranks (row_random.h draws by row), ";
constexpr const char* kRagged =
    "a mean of each rank's mean or each microbatch's (count_global), rows that are dropped or "
    "padded where shards "
    "differ, or state of an earlier run";
constexpr const char* kEmpty =
    "a count of at least 1 for 0 rows, an average that counts a rank without rows, a step or a sum "
    "that such a rank "
    "skips, or state of an earlier run";
constexpr const char* kNarrow =
    "a part of the step that computes or sends in float32 (a cast, a buffer, a wire), or a sum of "
    "very different "
    "numbers in another order";
constexpr const char* kDtype =
    "this dtype rounds more than the tolerance allows for, or a part of the step has a narrower "
    "one";

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

bool decides(const GradRow& row) {
  return row.dtype == Precision().text();
}

// What a factor leaves in float64.
bool rounds_like_float32(const GradRow& row) {
  return decides(row) && row.residual <= kFloat32 * std::max(1.0, std::abs(row.alpha));
}

// How many parts this is one of; 0: none.
double parts_of(const GradRow& row) {
  constexpr double kMost = 1024;
  const double parts = std::round(1 / row.alpha);
  return parts >= 2 && parts <= kMost && std::abs(row.alpha * parts - 1) <= within(row) ? parts : 0;
}

// A wrong scale that something makes, and a rest that float32 leaves.
bool is_a_factor_in_float32(const GradRow& row) {
  return !is_a_factor(row) && rounds_like_float32(row) && !is_one(row.alpha) &&
      (!row.guesses.empty() || parts_of(row) > 0);
}

// A step may take its rows in as many microbatches as the factor has parts: the check knows only of
// those that it was told of, which are among the guesses then.
std::string microbatches_text(const GradRow& row) {
  const bool named = std::any_of(
      row.guesses.begin(), row.guesses.end(), [](const std::string& guess) {
        return guess.find("microbatches") != std::string::npos;
      });
  const double parts = parts_of(row);
  if (named || parts == 0) {
    return "";
  }
  const auto text = "1 / microbatches if there are " + short_number(parts);
  return (row.guesses.empty() ? ". Candidate: " : ", or ") + text;
}

// `everywhere`: the factor is the same in every topology, as microbatches make it.
std::string factor_text(const GradRow& row, bool everywhere = true) {
  const auto times = short_number(row.alpha) + " times the reference";
  const auto sizes = row.guesses.empty() ? ", not explained by any product of pool sizes"
                                         : ": " + joined(row.guesses);
  return times + sizes + (everywhere ? microbatches_text(row) : "");
}

// What a factor leaves, where float64 would leave less.
std::string float32_text(const GradRow& row) {
  if (!decides(row) || row.residual <= row.tolerance) {
    return "";
  }
  return "; the rest has residual " + short_number(row.residual) +
      ", and float32 rounds like that" + kCandidates + kNarrow;
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

  bool is(
      Kind kind, const GradRow& row, const std::string& topology, const std::string& dtype) const {
    const auto it = kinds_.find(key(row, topology, dtype));
    return it != kinds_.end() && it->second == kind;
  }

  // In a ragged variant of `from`.
  bool differs_in_ragged(
      const GradRow& row,
      const std::string& from,
      const std::map<std::string, Origin>& variants) const {
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
    return is_one(row.alpha)
        ? "no factor, and more than rounding: residual " + error_number(row.residual)
        : factor_text(row) + float32_text(row);
  }
  if (is_a_factor_in_float32(row)) {
    return factor_text(row) + float32_text(row);
  }
  const auto measured = "no factor explains it (alpha " + short_number(row.alpha) + ", residual " +
      short_number(row.residual) + ")";
  if (is_one(row.alpha) && rounds_like_float32(row)) {
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
  const auto key = [](const GradRow& row) {
    return Key{row.dtype, row.terms, row.what, row.tensor};
  };
  const auto has_factor = [](const GradRow& row) {
    return is_a_factor(row) || is_a_factor_in_float32(row);
  };
  std::map<Key, std::vector<Factor>> factors;
  for (const auto& row : rows) {
    if (row.kind != Kind::Vacuous && has_factor(row) && by_name.contains(row.topology)) {
      factors[key(row)].push_back({row.alpha, *by_name[row.topology], microbatches});
    }
  }
  for (auto& row : rows) {
    if (row.kind != Kind::Different || !has_factor(row) || is_one(row.alpha)) {
      continue;
    }
    const auto& known = factors[key(row)];
    const auto before = factor_text(row);
    if (auto better = guesses(known, row.what == "norm", within(row)); !better.empty()) {
      row.guesses = std::move(better);
    }
    const bool everywhere = std::all_of(known.begin(), known.end(), [&](const Factor& factor) {
      return std::abs(factor.value - row.alpha) <= within(row) * std::abs(row.alpha);
    });
    if (const auto at = row.reason.find(before); at != std::string::npos) {
      row.reason.replace(at, before.size(), factor_text(row, everywhere));
    }
  }
}

void explain_by_neighbours(
    std::vector<GradRow>& rows, const std::map<std::string, Origin>& variants) {
  const Neighbours neighbours(rows);
  const auto float64 = Precision().text();
  for (auto& row : rows) {
    if (row.kind != Kind::Different) {
      continue;
    }
    const auto variant = variants.find(row.topology);
    if (variant != variants.end() &&
        neighbours.is(Kind::Equal, row, variant->second.from, row.dtype)) {
      const auto& from = variant->second.from;
      // Shards beside an empty one are uneven, too: what ragged ones show is not because of it.
      const bool empty = variant->second.empty &&
          !neighbours.differs_in_ragged(row, from, variants);
      const auto only = empty ? "only where a rank has no rows" : "only with ragged shards";
      narrow_down(row, std::string(only) + " (" + from + " is equal)", empty ? kEmpty : kRagged);
    }
    if (!decides(row) && neighbours.is(Kind::Equal, row, row.topology, float64)) {
      narrow_down(row, float64 + " is equal", kDtype);
    }
  }
}

}  // namespace retape::dist::detail
