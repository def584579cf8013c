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

}  // namespace retape::dist::detail
