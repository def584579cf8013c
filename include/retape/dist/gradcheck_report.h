// GradReport: what GradCheck has found, for people and for JSON.
#pragma once

#include <retape/api.h>
#include <retape/dist/contribution.h>
#include <retape/verify.h>

#include <optional>
#include <string>
#include <vector>

namespace retape::dist {

// One tensor, clip norm or loss, of one run.
struct GradRow {
  std::string topology;
  std::string dtype;  // "float64", "float32, bfloat16 wire"
  std::string terms;  // the one that is on, "all", "all, 4 steps"
  std::string what;   // "gradient", "parameter", "norm", "loss"
  std::string tensor;
  Verdict::Kind kind = Verdict::Kind::Equal;
  // max|d - r| / max|r|, of what ranks have (d) and the reference (r). Of a parameter ||d - r|| /
  // ||r||, where d and r are how far it has moved.
  double error = 0;
  double tolerance = 0;  // what it may be
  double alpha = 1;      // <d, r> / <r, r>: the factor that fits best
  double residual = 0;   // ||d - alpha r|| / ||r||: what no factor explains
  std::vector<std::string>
      guesses;                   // sizes that make alpha: "n_ci / n_block0"; all that are as simple
  std::string reason;            // empty if equal
  bool replicas_differ = false;  // ranks that should have the same bits have not
};

// One thing broken on purpose, at one contribution.
struct RETAPE_API GradMutant {
  Contribution at;
  Mutation mutation = Mutation::None;
  std::string pool;                 // whose size was taken; OtherCount only
  std::optional<double> predicted;  // ratio of a gradient that is nothing but this contribution
  std::optional<double>
      fitted;          // alpha of the tensor that is closest to it; none: no tensor differs
  std::string tensor;  // that one
  std::string terms;   // of the run that noticed
  bool killed = false;
  std::string reason;         // why it lives, or the error that killed it
  bool as_predicted() const;  // to one in a million
};

struct RETAPE_API GradReport {
  Verdict::Kind kind = Verdict::Kind::Vacuous;
  // The following on the first rank only.
  std::vector<GradRow> rows;
  std::vector<std::string> vacuous;  // why nothing is proved, beside what rows say
  std::vector<std::string> notes;    // what it does not show
  std::string mutated;               // topology of the self-test; empty: there was none
  std::vector<GradMutant> mutants;
  int equivalent = 0;  // mutations that change nothing (a group of one), left out

  explicit operator bool() const { return kind == Verdict::Kind::Equal; }
  int exit_code() const;  // 0 equal, 1 different, 6 vacuous
  int killed() const;
  int predicted() const;         // mutants for which there is a ratio
  int as_predicted() const;      // of those, killed by it
  double kill_rate() const;      // of mutants; 0 if there are none
  const GradRow* worst() const;  // largest error; null without rows
  std::string text() const;      // lines for people
  std::string json() const;      // all of it; numbers that are not finite are null
};

}  // namespace retape::dist
