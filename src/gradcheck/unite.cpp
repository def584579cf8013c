#include "gradcheck/unite.h"

#include "gradcheck/packing.h"

#include <ATen/Functions.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace retape::dist::detail {

namespace {

enum class Part : uint8_t { Gradient, Parameter };
using Numbers = std::map<std::string, double>;

// A tensor that some rank names.
struct Entry {
  Part part = Part::Gradient;
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes = {};
  std::string digest = "";  // empty: it has none there

  bool none() const { return digest.empty(); }
  bool is(const Entry& other) const { return part == other.part && name == other.name; }
  bool same_bits(const Entry& other) const {
    return dtype == other.dtype && sizes == other.sizes && digest == other.digest;
  }
  int64_t bytes() const {
    int64_t count = static_cast<int64_t>(c10::elementSize(dtype));
    for (const auto size : sizes) {
      count *= size;
    }
    return count;
  }
};

struct Manifest {
  std::vector<Entry> tensors;
  Numbers norms, losses;
};

// Dense, on the CPU, off the graph.
at::Tensor plain(const at::Tensor& tensor) {
  auto found = tensor.detach();
  if (found.layout() != at::kStrided) {
    found = found.to_dense();
  }
  return found.to(at::kCPU).resolve_conj().resolve_neg().contiguous();
}

std::string digest_of(const at::Tensor& tensor) {
  const auto hash = XXH3_128bits(tensor.const_data_ptr(), tensor.nbytes());
  return std::to_string(hash.high64) + "." + std::to_string(hash.low64);
}

std::vector<at::Tensor> list(const Outcome& outcome, Manifest& manifest) {
  std::vector<at::Tensor> tensors;
  const auto add = [&](Part part, const std::map<std::string, at::Tensor>& all) {
    for (const auto& [name, tensor] : all) {
      if (!tensor.defined()) {
        tensors.emplace_back();
        manifest.tensors.push_back({part, name});
        continue;
      }
      tensors.push_back(plain(tensor));
      const auto& held = tensors.back();
      manifest.tensors.push_back({part, name, held.scalar_type(), held.sizes().vec(), digest_of(held)});
    }
  };
  add(Part::Gradient, outcome.gradients);
  add(Part::Parameter, outcome.parameters);
  manifest.norms = outcome.norms;
  manifest.losses = outcome.losses;
  return tensors;
}

void pack(Packer& packer, const Numbers& numbers) {
  packer.number(numbers.size());
  for (const auto& [name, value] : numbers) {
    packer.text(name).real(value);
  }
}

Numbers unpacked_numbers(Unpacker& unpacker) {
  Numbers numbers;
  for (auto left = unpacker.number(); left > 0; --left) {
    const auto name = unpacker.text();
    numbers[name] = unpacker.real();
  }
  return numbers;
}

std::string packed(const Manifest& manifest) {
  Packer packer;
  packer.number(manifest.tensors.size());
  for (const auto& entry : manifest.tensors) {
    packer.number(static_cast<int64_t>(entry.part)).text(entry.name).number(static_cast<int64_t>(entry.dtype));
    packer.number(entry.sizes.size());
    for (const auto size : entry.sizes) {
      packer.number(size);
    }
    packer.text(entry.digest);
  }
  pack(packer, manifest.norms);
  pack(packer, manifest.losses);
  return packer.str();
}

Manifest unpacked(const std::string& text) {
  Unpacker unpacker(text);
  Manifest manifest;
  manifest.tensors.resize(unpacker.number());
  for (auto& entry : manifest.tensors) {
    entry.part = static_cast<Part>(unpacker.number());
    entry.name = unpacker.text();
    entry.dtype = static_cast<at::ScalarType>(unpacker.number());
    entry.sizes.resize(unpacker.number());
    for (auto& size : entry.sizes) {
      size = unpacker.number();
    }
    entry.digest = unpacker.text();
  }
  manifest.norms = unpacked_numbers(unpacker);
  manifest.losses = unpacked_numbers(unpacker);
  return manifest;
}

// A distinct tensor, and who holds it.
struct Holding {
  Entry entry;
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
  return have(everyone, odd) + " not the bits that " + have(everyone, {from}) + ": replicas drift apart";
}

// Zeros are none, too: a rank whose rows do not reach a parameter may have either.
std::string odd_text(const Group& everyone, const Holding& holding, const at::Tensor& tensor) {
  std::string text;
  if (!holding.odd.empty()) {
    text = odd_text(everyone, holding.from, holding.odd);
  }
  if (!holding.none.empty() && tensor.ne(0).any().item<bool>()) {
    text += (text.empty() ? "" : "; ") + have(everyone, holding.none) + " none, and " + have(everyone, {holding.from}) +
        " one: replicas drift apart";
  }
  return text;
}

// Of each the first that there is, and in `told` which ranks have another one.
Numbers unite_numbers(
    const Group& everyone, const std::vector<Manifest>& manifests, Numbers Manifest::*which,
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

// The bytes of tensors, one after another: one message for each rank that holds what the first has not.
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
      everyone_.exchange("gradcheck tensors", what, messages);
    }
    return received;
  }

 private:
  const Group& everyone_;
  std::map<int, int64_t> bytes_;
};

at::Tensor bytes_of(const std::vector<at::Tensor>& tensors, const std::vector<Holding>& holdings, const Manifest& own, int index) {
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

at::Tensor cut(const at::Tensor& bytes, int64_t begin, const Entry& entry) {
  const auto tensor = at::empty(entry.sizes, at::TensorOptions(entry.dtype));
  if (tensor.nbytes() > 0) {
    std::memcpy(tensor.data_ptr(), static_cast<const char*>(bytes.const_data_ptr()) + begin, tensor.nbytes());
  }
  return tensor;
}

}  // namespace

std::vector<std::string> gather_texts(const Group& group, const std::string& name, const std::string& text) {
  int64_t longest = 0;
  std::vector<int64_t> lengths;
  for (const auto& each : group.gather(name + ", lengths", at::full({1}, static_cast<int64_t>(text.size()), at::kLong))) {
    lengths.push_back(each.item<int64_t>());
    longest = std::max(longest, lengths.back());
  }
  if (longest == 0) {
    return std::vector<std::string>(lengths.size());
  }
  const auto padded = at::zeros({longest}, at::kByte);
  std::memcpy(padded.data_ptr(), text.data(), text.size());
  std::vector<std::string> texts;
  for (const auto& each : group.gather(name, padded)) {
    texts.emplace_back(static_cast<const char*>(each.const_data_ptr()), lengths[texts.size()]);
  }
  return texts;
}

void check(const Outcome& outcome) {
  for (const auto* tensors : {&outcome.gradients, &outcome.parameters}) {
    for (const auto& [name, tensor] : *tensors) {
      if (tensor.defined() && tensor.key_set().has(c10::DispatchKey::Python)) {
        throw UsageError(
            "[GradCheck] \"" + name + "\" is of a class of its own, as a DTensor is: a rank has a part of it. Fix: all "
            "of it, full_tensor().");
      }
    }
  }
}

United unite(const Group& everyone, const Outcome& mine) {
  Manifest own;
  const auto tensors = list(mine, own);
  std::vector<Manifest> manifests;
  for (const auto& text : gather_texts(everyone, "gradcheck manifest", packed(own))) {
    manifests.push_back(unpacked(text));
  }
  const auto holdings = holdings_of(manifests);
  United united;
  united.outcome.norms = unite_numbers(everyone, manifests, &Manifest::norms, united.odd_norms);
  united.outcome.losses = unite_numbers(everyone, manifests, &Manifest::losses, united.odd_losses);
  const auto bytes = bytes_of(tensors, holdings, own, everyone.index());
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
  return united;
}

std::vector<Contribution> unite(const Group& everyone, const std::vector<Contribution>& mine) {
  Packer packer;
  packer.number(mine.size());
  for (const auto& each : mine) {
    packer.number(static_cast<int64_t>(each.place)).text(each.name).text(each.group).number(each.size).number(each.count).number(each.even);
  }
  std::vector<Contribution> all;
  for (const auto& text : gather_texts(everyone, "gradcheck contributions", packer.str())) {
    Unpacker unpacker(text);
    for (auto left = unpacker.number(); left > 0; --left) {
      Contribution each;
      each.place = static_cast<Place>(unpacker.number());
      each.name = unpacker.text();
      each.group = unpacker.text();
      each.size = static_cast<int>(unpacker.number());
      each.count = unpacker.number();
      each.even = unpacker.number() != 0;
      if (const auto known = std::find(all.begin(), all.end(), each); known != all.end()) {
        merge(*known, each);
      } else {
        all.push_back(std::move(each));
      }
    }
  }
  return all;
}

}  // namespace retape::dist::detail
