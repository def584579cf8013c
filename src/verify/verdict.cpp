#include "verify/verdict.h"

#include <algorithm>
#include <sstream>

namespace retape {

namespace {

constexpr size_t kMostLines = 12;

std::string count(uint64_t n, const char* what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

template <typename Items, typename Line>
void lines(std::ostream& out, const Items& items, const char* more, Line line) {
  for (size_t i = 0; i < items.size() && i < kMostLines; ++i) {
    out << "\n  " << line(items[i]);
  }
  if (items.size() > kMostLines) {
    out << "\n  and " << items.size() - kMostLines << " more " << more;
  }
}

std::string line_of(const Finding& finding) {
  std::string text = finding.kind;
  text += finding.op.empty() ? "" : ", " + finding.op;
  text += finding.region.empty() ? "" : " in region \"" + finding.region + "\"";
  text += finding.source.empty() ? "" : " (" + finding.source + ")";
  return text + (finding.what.empty() ? "" : ": " + finding.what);
}

std::string work(const Verdict& verdict) {
  std::string text = count(verdict.ops_replayed, "op") + " replayed";
  text += verdict.reruns == 0 ? "" : ", " + count(verdict.reruns, "function call") + " made again";
  return text + ", " + count(verdict.values_checked, "replayed value") + " compared with forward's";
}

std::string how(const Verdict& verdict) {
  return verdict.with_tolerance ? "within tolerance, not bit for bit" : "bit for bit";
}

}  // namespace

std::string detail::line_of(const Difference& difference, bool where) {
  std::ostringstream out;
  if (where) {
    out << "[" << difference.order << ", step " << difference.step << "] ";
  }
  out << difference.what << " \"" << difference.name << "\": ";
  if (difference.first.empty()) {
    out << difference.plain << " against " << difference.recomputed;
    return out.str();
  }
  out << difference.differing << " of " << count(difference.elements, "element");
  if (difference.ulps > 0) {
    out << ", at most " << count(difference.ulps, "ulp") << " apart";
  }
  out << ", first at " << difference.first << ": " << difference.plain << " against "
      << difference.recomputed;
  return out.str();
}

const char* name_of(Verdict::Kind kind) {
  switch (kind) {
    case Verdict::Kind::Equal:
      return "equal";
    case Verdict::Kind::Different:
      return "different";
    case Verdict::Kind::Vacuous:
      return "vacuous";
  }
  return "";
}

void Verdict::add_vacuous(std::string reason) {
  vacuous.push_back(std::move(reason));
  kind = kind == Kind::Equal ? Kind::Vacuous : kind;
}

std::string Verdict::explain() const {
  std::ostringstream out;
  out << name_of(kind) << ": ";
  if (kind == Kind::Vacuous) {
    out << "it could not have come out otherwise";
  } else if (kind == Kind::Equal) {
    out << count(tensors_compared, "tensor") << " the same, " << how(*this);
  } else if (!error.empty()) {
    out << "the recomputed run raised";
  } else if (differences.empty()) {
    out << "replay did not do what forward did";
  } else {
    out << differences.size() << " of " << count(tensors_compared, "tensor") << ", compared "
        << how(*this);
  }
  out << "; " << work(*this);
  if (orders.size() > 1) {
    out << "; " << count(orders.size(), "order") << " of backward";
  }
  if (!error.empty()) {
    out << "\n  error: " << error;
  }
  const bool where = orders.size() > 1 ||
      std::any_of(differences.begin(), differences.end(), [](const auto& d) { return d.step > 0; });
  lines(out, differences, "tensors", [&](const auto& d) {
    return detail::line_of(d, where) + " (plain, recomputed)";
  });
  lines(out, findings, "findings", [&](const auto& finding) {
    return (&finding == &findings.front() ? "comes from: " : "then: ") + line_of(finding);
  });
  lines(out, vacuous, "reasons", [](const auto& reason) { return reason; });
  lines(out, kept_ops, "ops", [](const auto& kept) {
    return "kept: " + kept.op + ", " + count(kept.values, "result") + ", " +
        count(kept.bytes, "byte") + "; replayable(\"" + kept.op + "\") would let replay drop " +
        (kept.values == 1 ? "it" : "them");
  });
  lines(
      out, skipped, "orders", [](const auto& order) { return "raises, as plain does: " + order; });
  return out.str();
}

}  // namespace retape
