#include "dist/gradcheck/absence.h"

#include "dist/rank_text.h"

#include <algorithm>
#include <map>
#include <set>

namespace retape::dist::detail {

namespace {

using Ranks = std::vector<int>;
using Key = std::pair<std::string, std::string>;  // what, name

constexpr size_t kMostNames = 3;
// A name that a pool has lost is to be seen among those that another pool alone has.
constexpr size_t kMostOfPools = 12;

bool is_in(const Ranks& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// "rank 1 does not return", "ranks 1 and 2 do not return"
std::string do_not_return(const Ranks& ranks) {
  return ranks_text(ranks) + (ranks.size() == 1 ? " does" : " do") + " not return ";
}

std::string and_others_do(const Ranks& ranks) {
  return ", and " + ranks_text(ranks) + (ranks.size() == 1 ? " does" : " do");
}

struct Naming {
  Ranks present;  // it has the tensor or number
  Ranks named;    // it names it, at least
};

std::map<Key, Naming> namings_in(const std::vector<Manifest>& manifests, const Ranks& ranks) {
  std::map<Key, Naming> namings;
  for (size_t i = 0; i < manifests.size(); ++i) {
    const auto add = [&](const char* what, const std::string& name, bool present) {
      auto& naming = namings[{what, name}];
      naming.named.push_back(ranks[i]);
      if (present) {
        naming.present.push_back(ranks[i]);
      }
    };
    for (const auto& entry : manifests[i].tensors) {
      add(entry.part == Part::Gradient ? "gradient" : "parameter", entry.name, !entry.none());
    }
    for (const auto& [name, value] : manifests[i].norms) {
      add("norm", name, true);
    }
    for (const auto& [name, value] : manifests[i].losses) {
      add("loss", name, true);
    }
  }
  return namings;
}

// Names of pools, and of groups, that `ranks` are the members of; none where a rank is left over.
std::vector<std::string> whole_pools(const Topology& topology, const Ranks& ranks) {
  std::vector<std::string> names;
  std::set<int> covered;
  const auto cover = [&](const std::string& name, const Ranks& members) {
    const bool all = std::all_of(
        members.begin(), members.end(), [&](int rank) { return is_in(ranks, rank); });
    const bool more = std::any_of(
        members.begin(), members.end(), [&](int rank) { return !covered.contains(rank); });
    if (all && more) {
      names.push_back(name);
      covered.insert(members.begin(), members.end());
    }
  };
  for (const auto& pool : topology.pools()) {
    cover(pool.name, pool.ranks);
  }
  for (const auto& group : topology.groups()) {
    cover(group.name, group.ranks);
  }
  return covered.size() == ranks.size() ? names : std::vector<std::string>{};
}

// "pool "left"", "pools "left" and "right""
std::string pools_text(const std::vector<std::string>& names) {
  std::string text = names.size() == 1 ? "pool " : "pools ";
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "\"" : i + 1 == names.size() ? " and \"" : ", \"") + names[i] + "\"";
  }
  return text;
}

std::string names_text(
    const std::string& what, const std::vector<std::string>& names, size_t most = kMostNames) {
  std::string text = what + (names.size() == 1 ? "" : what == "loss" ? "es" : "s");
  for (size_t i = 0; i < std::min(names.size(), most); ++i) {
    text += (i == 0 ? " \"" : ", \"") + names[i] + "\"";
  }
  return text +
      (names.size() > most ? " and " + std::to_string(names.size() - most) + " more" : "");
}

// " (in 4; 4, ragged)"
std::string in_text(const std::vector<std::string>& topologies) {
  std::string text;
  for (const auto& topology : topologies) {
    text += (text.empty() ? " (in " : "; ") + topology;
  }
  return text + ")";
}

void insert(const std::string& name, std::vector<std::string>& into) {
  if (std::find(into.begin(), into.end(), name) == into.end()) {
    into.push_back(name);
  }
}

}  // namespace

std::vector<Absence> absences_in(const std::vector<Manifest>& manifests, const Ranks& ranks) {
  std::vector<Absence> absences;
  for (const auto& [key, naming] : namings_in(manifests, ranks)) {
    Ranks absent;
    for (size_t i = 0; i < manifests.size(); ++i) {
      if (manifests[i].ran && !is_in(naming.named, ranks[i])) {
        absent.push_back(ranks[i]);
      }
    }
    if (!absent.empty() && !naming.present.empty()) {
      absences.push_back({key.first, key.second, naming.present, std::move(absent)});
    }
  }
  return absences;
}

Ranks silent_in(const std::vector<Manifest>& manifests, const Ranks& ranks) {
  Ranks silent;
  for (size_t i = 0; i < manifests.size(); ++i) {
    const auto& [ran, tensors, norms, losses] = manifests[i];
    if (ran && tensors.empty() && norms.empty() && losses.empty()) {
      silent.push_back(ranks[i]);
    }
  }
  return silent;
}

std::string difference(const Absence& absence) {
  return do_not_return(absence.absent) + "it" + and_others_do(absence.present) +
      ". Every rank holds every tensor here. Fix: return it on every rank, as gradients_of(model) "
      "does, or give "
      "topologies if ranks hold different parameters";
}

void AbsenceNotes::add(const NamedTopology& topology, const United& united) {
  const auto& silent = united.silent;
  if (!silent.empty()) {
    add(ranks_text(silent) + (silent.size() == 1 ? " returns" : " return") + " nothing",
        topology.name);
  }
  std::map<std::tuple<std::string, Ranks, Ranks>, std::vector<std::string>> names;
  for (const auto& absence : united.absences) {
    Ranks absent = absence.absent;
    std::erase_if(absent, [&](int rank) { return is_in(silent, rank); });
    if (!absent.empty() && !add_pools(topology, absent, absence)) {
      names[{absence.what, std::move(absent), absence.present}].push_back(absence.name);
    }
  }
  for (const auto& [key, those] : names) {
    const auto& [what, absent, present] = key;
    add(do_not_return(absent) + names_text(what, those) + and_others_do(present), topology.name);
  }
}

void AbsenceNotes::add(const std::string& text, const std::string& topology) {
  const auto known = std::find_if(
      said_.begin(), said_.end(), [&](const auto& each) { return each.first == text; });
  insert(topology, known == said_.end() ? said_.emplace_back(text, Names{}).second : known->second);
}

// False: these are no whole pools.
bool AbsenceNotes::add_pools(
    const NamedTopology& topology, const Ranks& absent, const Absence& absence) {
  const auto without = whole_pools(topology.topology, absent);
  const auto with = whole_pools(topology.topology, absence.present);
  if (without.empty() || with.empty()) {
    return false;
  }
  auto& [names, topologies] = of_pools_[{without, with}];
  insert(absence.name, names[absence.what]);
  insert(topology.name, topologies);
  return true;
}

std::vector<std::string> AbsenceNotes::notes() const {
  std::vector<std::string> notes;
  for (const auto& [text, topologies] : said_) {
    notes.push_back(text + in_text(topologies) + ": what is there was not compared.");
  }
  for (const auto& [pools, left_out] : of_pools_) {
    const auto& [without, with] = pools;
    std::string what;
    for (const auto& [each, names] : left_out.names) {
      what += (what.empty() ? "" : ", ") + names_text(each, names, kMostOfPools);
    }
    notes.push_back(
        pools_text(without) + (without.size() == 1 ? " does" : " do") + " not return " + what +
        ", and " + pools_text(with) + (with.size() == 1 ? " does" : " do") +
        in_text(left_out.topologies) +
        ": right if it does not hold them; what it holds of them was not compared.");
  }
  return notes;
}

}  // namespace retape::dist::detail
