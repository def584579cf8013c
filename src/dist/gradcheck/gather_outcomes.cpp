#include "dist/gradcheck/gather_outcomes.h"

#include "dist/gradcheck/absence.h"
#include "dist/gradcheck/manifest.h"
#include "dist/row_exchange.h"

#include <ATen/Functions.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>

namespace retape::dist {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Contribution, place, name, group, size, count, even, contents)

namespace detail {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Listed, part, name, dtype, sizes, digest)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Manifest, ran, tensors, norms, losses)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankError, rank, text, collective)

namespace {

using Json = nlohmann::json;

// A distinct tensor, and who holds it.
struct Holding {
  Listed entry;
  int from = 0;           // the first index that holds it
  std::vector<int> odd;   // indices that hold something else under its name
  std::vector<int> none;  // indices that name it, and have none
};

std::vector<Holding> holdings_of(const std::vector<Manifest>& manifests) {
  std::vector<Holding> holdings;
  using Key = std::pair<Part, std::string>;
  std::map<Key, size_t> known;
  std::map<Key, std::vector<int>> none;
  for (size_t index = 0; index < manifests.size(); ++index) {
    for (const auto& entry : manifests[index].tensors) {
      const Key key(entry.part, entry.name);
      if (entry.none()) {
        none[key].push_back(static_cast<int>(index));
        continue;
      }
      const auto [it, fresh] = known.emplace(key, holdings.size());
      if (fresh) {
        holdings.push_back({entry, static_cast<int>(index), {}, {}});
      } else if (auto& holding = holdings[it->second]; !holding.entry.same_bits(entry)) {
        holding.odd.push_back(static_cast<int>(index));
      }
    }
  }
  for (const auto& [key, indices] : none) {
    if (const auto it = known.find(key); it != known.end()) {
      holdings[it->second].none = indices;
    }
  }
  return holdings;
}

// "rank 1 has", "ranks 1, 2 have"
std::string have(const Group& everyone, const std::vector<int>& indices) {
  std::string text = indices.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < indices.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(everyone.ranks()[indices[i]]);
  }
  return text + (indices.size() == 1 ? " has" : " have");
}

std::string odd_text(const Group& everyone, int from, const std::vector<int>& odd) {
  return have(everyone, odd) + " not the bits that " + have(everyone, {from}) +
      ": replicas drift apart";
}

bool is_zero(const at::Tensor& tensor) {
  return !tensor.ne(0).any().item<bool>();
}

// Zeros are none, too: a rank whose rows do not reach a parameter may have either.
std::string odd_text(const Group& everyone, const Holding& holding, const at::Tensor& tensor) {
  std::string text;
  if (!holding.odd.empty()) {
    text = odd_text(everyone, holding.from, holding.odd);
  }
  if (!holding.none.empty() && !is_zero(tensor)) {
    text += (text.empty() ? "" : "; ") + have(everyone, holding.none) + " none, and " +
        have(everyone, {holding.from}) + " one: replicas drift apart";
  }
  return text;
}

// Of each the first that there is, and in `told` which ranks have another one.
Numbers unite_numbers(
    const Group& everyone,
    const std::vector<Manifest>& manifests,
    Numbers Manifest::* which,
    std::map<std::string, std::string>& told) {
  Numbers united;
  std::map<std::string, int> first;
  std::map<std::string, std::vector<int>> odd;
  for (size_t index = 0; index < manifests.size(); ++index) {
    for (const auto& [name, value] : manifests[index].*which) {
      const auto [it, fresh] = united.emplace(name, value);
      if (fresh) {
        first[name] = static_cast<int>(index);
      } else if (std::memcmp(&it->second, &value, sizeof(value)) != 0) {
        odd[name].push_back(static_cast<int>(index));
      }
    }
  }
  for (const auto& [name, indices] : odd) {
    told[name] = odd_text(everyone, first.at(name), indices);
  }
  return united;
}

// The bytes of tensors, one after another: one message for each rank that holds what the first has
// not.
class Delivery {
 public:
  Delivery(const Group& everyone, const std::vector<Holding>& holdings) : everyone_(everyone) {
    for (const auto& holding : holdings) {
      bytes_[holding.from] += holding.entry.bytes();
    }
    bytes_.erase(0);
  }

  // Bytes of what each rank holds first, by its index; on the first rank.
  std::map<int, at::Tensor> make(const at::Tensor& mine) const {
    std::map<int, at::Tensor> received;
    std::vector<Message> messages;
    std::string what = "outcomes";
    for (const auto& [from, bytes] : bytes_) {
      if (bytes == 0) {
        continue;
      }
      what += " " + std::to_string(from) + ":" + std::to_string(bytes);
      if (everyone_.index() == 0) {
        received[from] = at::empty({bytes}, at::kByte);
        messages.push_back({from, 0, received[from]});
      } else if (everyone_.index() == from) {
        messages.push_back({from, 0, mine});
      }
    }
    if (what != "outcomes") {
      exchange(everyone_, "gradcheck tensors", what, at::kCPU, messages);
    }
    return received;
  }

 private:
  const Group& everyone_;
  std::map<int, int64_t> bytes_;
};

at::Tensor bytes_of(
    const std::vector<at::Tensor>& tensors,
    const std::vector<Holding>& holdings,
    const Manifest& own,
    int index) {
  std::vector<at::Tensor> parts{at::empty({0}, at::kByte)};
  for (const auto& holding : holdings) {
    for (size_t i = 0; holding.from == index && i < own.tensors.size(); ++i) {
      if (own.tensors[i].is(holding.entry) && tensors[i].numel() > 0) {
        parts.push_back(tensors[i].reshape({-1}).view(at::kByte));
      }
    }
  }
  return at::cat(parts);
}

at::Tensor cut(const at::Tensor& bytes, int64_t begin, const Listed& entry) {
  const auto tensor = at::empty(entry.sizes, at::TensorOptions(entry.dtype));
  if (tensor.nbytes() > 0) {
    std::memcpy(
        tensor.data_ptr(),
        static_cast<const char*>(bytes.const_data_ptr()) + begin,
        tensor.nbytes());
  }
  return tensor;
}

// On the first rank. A loss may be one rank's to log, and zeros are no gradient.
void note_absences(
    const Group& everyone,
    const std::vector<Manifest>& manifests,
    bool replicated,
    United& united) {
  const auto& gradients = united.outcome.gradients;
  std::map<std::string, std::map<std::string, std::string>*> odd{
      {"gradient", &united.odd_gradients},
      {"parameter", &united.odd_parameters},
      {"norm", &united.odd_norms}};
  for (auto& absence : absences_in(manifests, everyone.ranks())) {
    if (absence.what == "gradient" && is_zero(gradients.at(absence.name))) {
      continue;
    }
    if (replicated && odd.contains(absence.what)) {
      auto& text = (*odd[absence.what])[absence.name];
      text += (text.empty() ? "" : "; ") + difference(absence);
    } else {
      united.absences.push_back(std::move(absence));
    }
  }
  united.silent = silent_in(manifests, everyone.ranks());
}

United united_outcome(
    const Group& everyone,
    const std::vector<Manifest>& manifests,
    const std::vector<at::Tensor>& tensors,
    bool replicated) {
  const auto holdings = holdings_of(manifests);
  United united;
  united.outcome.norms = unite_numbers(everyone, manifests, &Manifest::norms, united.odd_norms);
  united.outcome.losses = unite_numbers(everyone, manifests, &Manifest::losses, united.odd_losses);
  const auto bytes = bytes_of(tensors, holdings, manifests[everyone.index()], everyone.index());
  auto received = Delivery(everyone, holdings).make(bytes);
  if (everyone.index() != 0) {
    return united;
  }
  received[0] = bytes;
  std::map<int, int64_t> next;
  for (const auto& holding : holdings) {
    const bool gradient = holding.entry.part == Part::Gradient;
    auto& to = gradient ? united.outcome.gradients : united.outcome.parameters;
    auto& begin = next[holding.from];
    const auto tensor = cut(received[holding.from], begin, holding.entry);
    to[holding.entry.name] = tensor;
    begin += holding.entry.bytes();
    if (auto text = odd_text(everyone, holding, tensor); !text.empty()) {
      auto& odd = gradient ? united.odd_gradients : united.odd_parameters;
      odd[holding.entry.name] = std::move(text);
    }
  }
  note_absences(everyone, manifests, replicated, united);
  return united;
}

// One text of each rank, in order. Most are short: those that are not travel in a second call.
std::vector<std::string> gather_texts(
    const Group& group, const std::string& name, const std::string& text) {
  constexpr int64_t kShort = 4096;
  const auto gathered = [&](const std::string& what, int64_t room, const std::string& sent) {
    const auto padded = at::zeros({room}, at::kByte);
    std::memcpy(padded.data_ptr(), sent.data(), std::min(static_cast<size_t>(room), sent.size()));
    return group.gather(what, padded);
  };
  const auto length_of = [](const void* framed) {
    int64_t length = 0;
    std::memcpy(&length, framed, sizeof(length));
    return length;
  };
  const auto size = static_cast<int64_t>(text.size());
  const auto framed = std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text;
  auto all = gathered(name, kShort, framed);
  int64_t longest = 0;
  for (const auto& each : all) {
    longest = std::max<int64_t>(longest, sizeof(size) + length_of(each.const_data_ptr()));
  }
  if (longest > kShort) {
    all = gathered(name + ", at length", longest, framed);
  }
  std::vector<std::string> texts;
  for (const auto& each : all) {
    const auto* const begin = static_cast<const char*>(each.const_data_ptr());
    texts.emplace_back(begin + sizeof(size), length_of(begin));
  }
  return texts;
}

// As CBOR, which has every double as it is.
std::string packed(const Share& share, const Manifest& manifest) {
  using Errors = std::vector<RankError>;
  const Json all{
      {"errors", share.error ? Errors{*share.error} : Errors{}},
      {"hit", share.hit},
      {"seen", share.seen},
      {"manifest", manifest}};
  const auto bytes = Json::to_cbor(all);
  return std::string(bytes.begin(), bytes.end());
}

// Into `ran`; what it lists.
Manifest take(const std::string& text, Ran& ran) {
  const auto all = Json::from_cbor(text);
  for (auto& error : all.at("errors").get<std::vector<RankError>>()) {
    ran.errors.push_back(std::move(error));
  }
  ran.hit |= all.at("hit").get<bool>();
  for (auto& each : all.at("seen").get<std::vector<Contribution>>()) {
    if (const auto known = std::find(ran.seen.begin(), ran.seen.end(), each);
        known != ran.seen.end()) {
      merge(*known, each);
    } else {
      ran.seen.push_back(std::move(each));
    }
  }
  return all.at("manifest").get<Manifest>();
}

}  // namespace

void check(const Outcome& outcome) {
  for (const auto* tensors : {&outcome.gradients, &outcome.parameters}) {
    for (const auto& [name, tensor] : *tensors) {
      if (tensor.defined() && tensor.key_set().has(c10::DispatchKey::Python)) {
        throw UsageError(
            "[GradCheck] \"" + name +
            "\" is of a class of its own, as a DTensor is: a rank has a part of it. Fix: all "
            "of it, full_tensor().");
      }
    }
  }
}

Ran unite(const Group& everyone, const Share& mine, bool replicated) {
  Manifest own;
  own.ran = mine.ran;
  const auto tensors = list(mine.outcome, own);
  Ran ran;
  std::vector<Manifest> manifests;
  for (const auto& text : gather_texts(everyone, "gradcheck run", packed(mine, own))) {
    manifests.push_back(take(text, ran));
  }
  if (!ran.errors.empty()) {
    return {std::move(ran.errors)};
  }
  ran.united = united_outcome(everyone, manifests, tensors, replicated);
  return ran;
}

}  // namespace detail

}  // namespace retape::dist
