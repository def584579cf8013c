#include "dist/gradcheck/absence.h"

#include "dist/whereabouts.h"

#include <algorithm>
#include <map>
#include <set>

namespace retape::dist::detail {

namespace {

using Ranks = std::vector<int>;
using Key = std::pair<std::string, std::string>;  // what, name

constexpr size_t kMostNames = 3;

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

// Every rank of `present` is in a pool or group of which all ranks are.
bool are_whole_pools(const Topology& topology, const Ranks& present) {
  std::set<int> covered;
  const auto cover = [&](const Ranks& ranks) {
    if (std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return is_in(present, rank); })) {
      covered.insert(ranks.begin(), ranks.end());
    }
  };
  for (const auto& pool : topology.pools()) {
    cover(pool.ranks);
  }
  for (const auto& group : topology.groups()) {
    cover(group.ranks);
  }
  return covered.size() == present.size();
}

std::string names_text(const std::string& what, const std::vector<std::string>& names) {
  std::string text = what + (names.size() == 1 ? "" : what == "loss" ? "es" : "s");
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) {
    text += (i == 0 ? " \"" : ", \"") + names[i] + "\"";
  }
  return text + (names.size() > kMostNames ? " and " + std::to_string(names.size() - kMostNames) + " more" : "");
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
      ". Every rank holds every tensor here. Fix: return it on every rank, as gradients_of(model) does, or give "
      "topologies if ranks hold different parameters";
}

void AbsenceNotes::add(const NamedTopology& topology, const United& united) {
  const auto& silent = united.silent;
  if (!silent.empty()) {
    add(ranks_text(silent) + (silent.size() == 1 ? " returns" : " return") + " nothing", topology.name);
  }
  std::map<std::tuple<std::string, Ranks, Ranks>, std::vector<std::string>> names;
  for (const auto& absence : united.absences) {
    Ranks absent = absence.absent;
    std::erase_if(absent, [&](int rank) { return is_in(silent, rank); });
    const bool meant = are_whole_pools(topology.topology, absence.present);
    if (!absent.empty() && !meant) {
      names[{absence.what, std::move(absent), absence.present}].push_back(absence.name);
    }
  }
  for (const auto& [key, those] : names) {
    const auto& [what, absent, present] = key;
    add(do_not_return(absent) + names_text(what, those) + and_others_do(present), topology.name);
  }
}

void AbsenceNotes::add(const std::string& text, const std::string& topology) {
  const auto known = std::find_if(said_.begin(), said_.end(), [&](const auto& each) { return each.first == text; });
  auto& topologies = known == said_.end() ? said_.emplace_back(text, std::vector<std::string>{}).second : known->second;
  if (std::find(topologies.begin(), topologies.end(), topology) == topologies.end()) {
    topologies.push_back(topology);
  }
}

std::vector<std::string> AbsenceNotes::notes() const {
  std::vector<std::string> notes;
  for (const auto& [text, topologies] : said_) {
    std::string in;
    for (const auto& topology : topologies) {
      in += (in.empty() ? "" : "; ") + topology;
    }
    notes.push_back(text + " (in " + in + "): what is there was not compared.");
  }
  return notes;
}

}  // namespace retape::dist::detail
