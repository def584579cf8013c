#include "dist/gradcheck/manifest.h"

#include <ATen/Functions.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace retape::dist::detail {

namespace {

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

}  // namespace

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
      manifest.tensors.push_back(
          {part, name, held.scalar_type(), held.sizes().vec(), digest_of(held)});
    }
  };
  add(Part::Gradient, outcome.gradients);
  add(Part::Parameter, outcome.parameters);
  manifest.norms = outcome.norms;
  manifest.losses = outcome.losses;
  return tensors;
}

void pack(Packer& packer, const Manifest& manifest) {
  packer.number(manifest.ran).number(manifest.tensors.size());
  for (const auto& entry : manifest.tensors) {
    packer.number(static_cast<int64_t>(entry.part))
        .text(entry.name)
        .number(static_cast<int64_t>(entry.dtype));
    packer.number(entry.sizes.size());
    for (const auto size : entry.sizes) {
      packer.number(size);
    }
    packer.text(entry.digest);
  }
  pack(packer, manifest.norms);
  pack(packer, manifest.losses);
}

Manifest unpacked_manifest(Unpacker& unpacker) {
  Manifest manifest;
  manifest.ran = unpacker.number() != 0;
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

}  // namespace retape::dist::detail
