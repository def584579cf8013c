#include <retape/dist/gradcheck_report.h>

#include "gradcheck/json.h"
#include "gradcheck/number_text.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

namespace retape::dist {

namespace {

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
  out << "[" << row.topology << "; " << row.dtype << "; " << row.terms << "] " << row.what << " \"" << row.tensor
      << "\": ";
  if (row.kind == Kind::Different) {
    out << "off by " << error_number(row.error) << ", allowed " << error_number(row.tolerance) << ": ";
  }
  out << row.reason;
  if (told.more > 0) {
    out << " (and so in " << counted(told.more, "other run") << ")";
  }
  return out.str();
}

bool is_of_all(const GradRow& row) {
  return row.terms == "all" || row.terms.rfind("all, ", 0) == 0;
}

// Whether a row that differs only follows from another: a norm from gradients, a parameter or the sum of
// all terms from a term.
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
      }
    }
  }

  bool has(const GradRow& row) const {
    const auto run = row.topology + "\n" + row.dtype + "\n";
    if (row.what == "norm") {
      return runs_.count(run + row.terms) > 0;
    }
    if (row.what == "parameter") {
      return gradients_.count(run + row.tensor) > 0;
    }
    return is_of_all(row) && alone_.count(run + row.tensor) > 0;
  }

 private:
  std::set<std::string> runs_, alone_, gradients_;
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
      << text(mutant.at.place) << " \"" << mutant.at.name << "\" of group \"" << mutant.at.group << "\": "
      << mutant.reason;
  return out.str();
}

std::string json_of(const GradRow& row, const Causes& causes) {
  namespace json = detail::json;
  return json::Object()
      .add("topology", json::text(row.topology))
      .add("dtype", json::text(row.dtype))
      .add("terms", json::text(row.terms))
      .add("what", json::text(row.what))
      .add("tensor", json::text(row.tensor))
      .add("kind", json::text(name_of(row.kind)))
      .add("error", json::number(row.error))
      .add("tolerance", json::number(row.tolerance))
      .add("alpha", json::number(row.alpha))
      .add("residual", json::number(row.residual))
      .add("guesses", json::array(row.guesses, json::text))
      .add("reason", json::text(row.reason))
      .add("follows", json::boolean(row.kind == Kind::Different && causes.has(row)))
      .str();
}

std::string json_of(const GradMutant& mutant) {
  namespace json = detail::json;
  const auto maybe = [](const std::optional<double>& value) { return value ? json::number(*value) : "null"; };
  return json::Object()
      .add("place", json::text(text(mutant.at.place)))
      .add("name", json::text(mutant.at.name))
      .add("group", json::text(mutant.at.group))
      .add("size", std::to_string(mutant.at.size))
      .add("mutation", json::text(text(mutant.mutation)))
      .add("pool", json::text(mutant.pool))
      .add("predicted", maybe(mutant.predicted))
      .add("fitted", maybe(mutant.fitted))
      .add("as_predicted", json::boolean(mutant.as_predicted()))
      .add("tensor", json::text(mutant.tensor))
      .add("terms", json::text(mutant.terms))
      .add("killed", json::boolean(mutant.killed))
      .add("reason", json::text(mutant.reason))
      .str();
}

size_t count_of(const std::vector<GradRow>& rows, Kind kind) {
  return std::count_if(rows.begin(), rows.end(), [&](const GradRow& row) { return row.kind == kind; });
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
  std::string text = std::to_string(topologies.size()) + (topologies.size() == 1 ? " topology (" : " topologies (");
  for (size_t i = 0; i < topologies.size(); ++i) {
    text += (i == 0 ? "" : "; ") + topologies[i];
  }
  text += ")";
  for (const auto& dtype : dtypes) {
    text += "; " + dtype + " off by up to " + error_number(worst[dtype]);
  }
  return text;
}

}  // namespace

bool GradMutant::as_predicted() const {
  return predicted && fitted && std::abs(*fitted - *predicted) <= 1e-6 * std::max(1.0, std::abs(*predicted));
}

int GradReport::exit_code() const {
  switch (kind) {
    case Kind::Equal: return 0;
    case Kind::Different: return 1;
    case Kind::Vacuous: return 6;
  }
  return 6;
}

int GradReport::killed() const {
  return static_cast<int>(
      std::count_if(mutants.begin(), mutants.end(), [](const GradMutant& mutant) { return mutant.killed; }));
}

double GradReport::kill_rate() const {
  return mutants.empty() ? 0 : static_cast<double>(killed()) / static_cast<double>(mutants.size());
}

const GradRow* GradReport::worst() const {
  const auto it = std::max_element(
      rows.begin(), rows.end(), [](const GradRow& a, const GradRow& b) { return a.error < b.error; });
  return it == rows.end() ? nullptr : &*it;
}

std::string GradReport::text() const {
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
    lines(out, groups_of(rows, wanted, follow), name_of(wanted), all, [](const Told& told) { return line_of(told); });
  }
  if (follow > 0) {
    out << "\n  and " << counted(follow, "difference") << " more, which these explain";
  }
  lines(out, vacuous, "reasons", all, [](const auto& reason) { return "vacuous: " + reason; });
  if (!mutated.empty()) {
    out << "\n  self-test at " << mutated << ": " << killed() << " of " << counted(mutants.size(), "mutant")
        << " noticed";
    lines(
        out, mutants, "survivors", [](const GradMutant& mutant) { return !mutant.killed; },
        [](const GradMutant& mutant) { return "not noticed: " + line_of(mutant); });
  }
  lines(out, notes, "notes", all, [](const auto& note) { return "note: " + note; });
  return out.str();
}

std::string GradReport::json() const {
  namespace json = detail::json;
  const auto* most = worst();
  const Causes causes(rows);
  return json::Object()
      .add("kind", json::text(name_of(kind)))
      .add("exit_code", std::to_string(exit_code()))
      .add("worst_error", most ? json::number(most->error) : "null")
      .add("vacuous", json::array(vacuous, json::text))
      .add("notes", json::array(notes, json::text))
      .add("rows", json::array(rows, [&](const GradRow& row) { return json_of(row, causes); }))
      .add(
          "self_test",
          json::Object()
              .add("topology", json::text(mutated))
              .add("killed", std::to_string(killed()))
              .add("mutants", std::to_string(mutants.size()))
              .add("equivalent", std::to_string(equivalent))
              .add("kill_rate", mutants.empty() ? "null" : json::number(kill_rate()))
              .add("rows", json::array(mutants, [](const GradMutant& mutant) { return json_of(mutant); }))
              .str())
      .str();
}

}  // namespace retape::dist
