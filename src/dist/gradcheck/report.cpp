#include <retape/dist/gradcheck_report.h>

#include "dist/gradcheck/number_text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

namespace retape::dist {

namespace {

using Json = nlohmann::ordered_json;
using Kind = Verdict::Kind;
using detail::counted;
using detail::error_number;

constexpr size_t kMostLines = 12;

template <typename Items, typename Wanted, typename Line>
void lines(std::ostream& out, const Items& items, const char* more, Wanted wanted, Line line) {
  size_t shown = 0;
  size_t found = 0;
  for (const auto& item : items) {
    if (wanted(item) && ++found <= kMostLines) {
      out << "\n  " << line(item);
      ++shown;
    }
  }
  if (found > shown) {
    out << "\n  and " << found - shown << " more " << more;
  }
}

// Rows that say the same, of several topologies and dtypes.
struct Told {
  const GradRow* row;
  size_t more = 0;
};

std::string line_of(const Told& told) {
  const auto& row = *told.row;
  std::ostringstream out;
  out << "[" << row.topology << "; " << row.dtype << "; " << row.terms << "] " << row.what << " \""
      << row.tensor << "\": ";
  if (row.kind == Kind::Different) {
    out << "off by " << error_number(row.error) << ", allowed " << error_number(row.tolerance)
        << ": ";
  }
  out << row.reason;
  if (told.more > 0) {
    out << " (and so in " << counted(told.more, "other run") << ")";
  }
  return out.str();
}

bool is_of_all(const GradRow& row) {
  return row.terms == "all" || row.terms.starts_with("all, ");
}

// Whether a row that differs only follows from another: a norm from gradients, a parameter or the
// sum of all terms from a term.
class Causes {
 public:
  explicit Causes(const std::vector<GradRow>& rows) {
    for (const auto& row : rows) {
      if (row.kind == Kind::Different && row.what == "gradient") {
        const auto run = row.topology + "\n" + row.dtype + "\n";
        runs_.insert(run + row.terms);
        if (!is_of_all(row)) {
          alone_.insert(run + row.tensor);
        }
        gradients_.insert(run + row.tensor);
        if (row.replicas_differ) {
          drifts_.insert(run);
        }
      }
    }
  }

  bool has(const GradRow& row) const {
    const auto run = row.topology + "\n" + row.dtype + "\n";
    if (row.replicas_differ && !drifts_.contains(run)) {
      return false;  // gradients that all ranks have alike, wrong or right, do not part replicas
    }
    if (row.what == "norm") {
      return runs_.contains(run + row.terms);
    }
    if (row.what == "parameter") {
      return gradients_.contains(run + row.tensor);
    }
    return is_of_all(row) && alone_.contains(run + row.tensor);
  }

 private:
  std::set<std::string> runs_, alone_, gradients_, drifts_;
};

std::vector<Told> groups_of(const std::vector<GradRow>& rows, Kind kind, size_t& follow) {
  const Causes causes(rows);
  std::vector<Told> groups;
  std::map<std::string, size_t> known;
  for (const auto& row : rows) {
    if (row.kind != kind) {
      continue;
    }
    if (kind == Kind::Different && causes.has(row)) {
      ++follow;
      continue;
    }
    const auto key = row.what + "\n" + row.tensor + "\n" + row.terms + "\n" + row.reason;
    const auto [it, fresh] = known.emplace(key, groups.size());
    if (fresh) {
      groups.push_back({&row, 0});
    } else {
      ++groups[it->second].more;
    }
  }
  return groups;
}

std::string line_of(const GradMutant& mutant) {
  std::ostringstream out;
  out << text(mutant.mutation) << (mutant.pool.empty() ? "" : " (of " + mutant.pool + ")") << " at "
      << text(mutant.at.place) << " \"" << mutant.at.name << "\" of group \"" << mutant.at.group
      << "\": " << mutant.reason;
  if (mutant.fitted && mutant.predicted && !mutant.as_predicted()) {
    out << detail::short_number(*mutant.fitted) << " of \"" << mutant.tensor << "\", predicted "
        << detail::short_number(*mutant.predicted) << ": no gradient is this contribution alone";
  }
  return out.str();
}

Json json_of(const GradRow& row, const Causes& causes) {
  return {
      {"topology", row.topology},
      {"dtype", row.dtype},
      {"terms", row.terms},
      {"what", row.what},
      {"tensor", row.tensor},
      {"kind", name_of(row.kind)},
      {"error", row.error},
      {"tolerance", row.tolerance},
      {"alpha", row.alpha},
      {"residual", row.residual},
      {"guesses", row.guesses},
      {"reason", row.reason},
      {"follows", row.kind == Kind::Different && causes.has(row)}};
}

Json json_of(const GradMutant& mutant) {
  const auto maybe = [](const std::optional<double>& value) {
    return value ? Json(*value) : Json();
  };
  return {
      {"place", text(mutant.at.place)},
      {"name", mutant.at.name},
      {"group", mutant.at.group},
      {"size", mutant.at.size},
      {"mutation", text(mutant.mutation)},
      {"pool", mutant.pool},
      {"predicted", maybe(mutant.predicted)},
      {"fitted", maybe(mutant.fitted)},
      {"as_predicted", mutant.as_predicted()},
      {"tensor", mutant.tensor},
      {"terms", mutant.terms},
      {"killed", mutant.killed},
      {"reason", mutant.reason}};
}

template <typename Items, typename Each>
Json array_of(const Items& items, Each each) {
  auto array = Json::array();
  for (const auto& item : items) {
    array.push_back(each(item));
  }
  return array;
}

size_t count_of(const std::vector<GradRow>& rows, Kind kind) {
  return std::count_if(
      rows.begin(), rows.end(), [&](const GradRow& row) { return row.kind == kind; });
}

// "3 topologies (1; 4; 4, ragged), float64 to 1.1e-15, float32 to 3.4e-07"
std::string work(const std::vector<GradRow>& rows) {
  std::vector<std::string> topologies, dtypes;
  std::map<std::string, double> worst;
  for (const auto& row : rows) {
    if (std::find(topologies.begin(), topologies.end(), row.topology) == topologies.end()) {
      topologies.push_back(row.topology);
    }
    if (std::find(dtypes.begin(), dtypes.end(), row.dtype) == dtypes.end()) {
      dtypes.push_back(row.dtype);
    }
    worst[row.dtype] = std::max(worst[row.dtype], row.error);
  }
  std::string text = std::to_string(topologies.size()) +
      (topologies.size() == 1 ? " topology (" : " topologies (");
  for (size_t i = 0; i < topologies.size(); ++i) {
    text += (i == 0 ? "" : "; ") + topologies[i];
  }
  text += ')';
  for (const auto& dtype : dtypes) {
    text += "; " + dtype + " off by up to " + error_number(worst[dtype]);
  }
  return text;
}

}  // namespace

bool GradMutant::as_predicted() const {
  return predicted && fitted &&
      std::abs(*fitted - *predicted) <= 1e-6 * std::max(1.0, std::abs(*predicted));
}

int GradReport::exit_code() const {
  switch (kind) {
    case Kind::Equal:
      return 0;
    case Kind::Different:
      return 1;
    case Kind::Vacuous:
      return 6;
  }
  return 6;
}

int GradReport::killed() const {
  return static_cast<int>(std::count_if(
      mutants.begin(), mutants.end(), [](const GradMutant& mutant) { return mutant.killed; }));
}

int GradReport::predicted() const {
  return static_cast<int>(
      std::count_if(mutants.begin(), mutants.end(), [](const GradMutant& mutant) {
        return mutant.predicted.has_value();
      }));
}

int GradReport::as_predicted() const {
  return static_cast<int>(
      std::count_if(mutants.begin(), mutants.end(), [](const GradMutant& mutant) {
        return mutant.as_predicted();
      }));
}

double GradReport::kill_rate() const {
  return mutants.empty() ? 0 : static_cast<double>(killed()) / static_cast<double>(mutants.size());
}

const GradRow* GradReport::worst() const {
  const auto it = std::max_element(
      rows.begin(), rows.end(), [](const GradRow& a, const GradRow& b) {
        return a.error < b.error;
      });
  return it == rows.end() ? nullptr : &*it;
}

std::string GradReport::text() const {
  if (rows.empty() && vacuous.empty() && notes.empty()) {
    return std::string(name_of(kind)) + ": the first rank has the report.";
  }
  std::ostringstream out;
  out << name_of(kind) << ": ";
  if (kind == Kind::Different) {
    out << count_of(rows, Kind::Different) << " of " << counted(rows.size(), "comparison");
  } else {
    out << counted(rows.size(), "comparison");
  }
  out << " in " << work(rows);
  const auto all = [](const auto&) { return true; };
  size_t follow = 0;
  for (const auto wanted : {Kind::Different, Kind::Vacuous}) {
    lines(out, groups_of(rows, wanted, follow), name_of(wanted), all, [](const Told& told) {
      return line_of(told);
    });
  }
  if (follow > 0) {
    out << "\n  and " << counted(follow, "difference") << " more, which these explain";
  }
  lines(out, vacuous, "reasons", all, [](const auto& reason) { return "vacuous: " + reason; });
  if (!mutated.empty()) {
    out << "\n  self-test at " << mutated << ": " << killed() << " of "
        << counted(mutants.size(), "mutant") << " noticed, " << as_predicted() << " of "
        << predicted() << " by the ratio that was predicted";
    lines(
        out,
        mutants,
        "survivors",
        [](const GradMutant& mutant) { return !mutant.killed; },
        [](const GradMutant& mutant) { return "not noticed: " + line_of(mutant); });
    lines(
        out,
        mutants,
        "of other ratios",
        [](const GradMutant& mutant) {
          return mutant.killed && mutant.predicted && !mutant.as_predicted();
        },
        [](const GradMutant& mutant) { return "noticed, by another ratio: " + line_of(mutant); });
  }
  lines(out, notes, "notes", all, [](const auto& note) { return "note: " + note; });
  return out.str();
}

std::string GradReport::json() const {
  const auto* most = worst();
  const Causes causes(rows);
  const Json self_test{
      {"topology", mutated},
      {"killed", killed()},
      {"mutants", mutants.size()},
      {"equivalent", equivalent},
      {"predicted", predicted()},
      {"as_predicted", as_predicted()},
      {"kill_rate", mutants.empty() ? Json() : Json(kill_rate())},
      {"rows", array_of(mutants, [](const GradMutant& mutant) { return json_of(mutant); })}};
  const Json all{
      {"kind", name_of(kind)},
      {"exit_code", exit_code()},
      {"worst_error", most ? Json(most->error) : Json()},
      {"vacuous", vacuous},
      {"notes", notes},
      {"rows", array_of(rows, [&](const GradRow& row) { return json_of(row, causes); })},
      {"self_test", self_test}};
  // Names that are not UTF-8 are somebody's, too.
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace retape::dist
