// What a site is made of: V [in, components] and U [components, out], and what they leave over,
// delta = weight - (V U)^T.
#pragma once

#include <three_pool/target.h>

namespace three_pool {

struct Components {
  std::vector<Tensor> v, u;  // of all sites

  Components() = default;
  Components(const Config& config, uint64_t seed, at::ScalarType dtype);

  // "V.layer0.up", "U.layer0.up" of the sites from `begin` to `end`; by default of all.
  Named named(const std::vector<Site>& sites, size_t begin = 0, size_t end = SIZE_MAX) const;
  Components detached() const;
};

// The parts of a site that take part: components [rows, positions, components], delta [rows,
// positions].
struct Mask {
  Tensor components, delta;
};

// Between the lower bound and one, as far as `source` [rows, positions, components + 1] says; its
// last column is that of delta.
Mask mask_of(const Tensor& lower, const Tensor& source);

Tensor delta(const Target& target, const Components& components, size_t site);  // [out, in]

// ((x V) * mask) U + delta mask * (x delta^T) + bias
Tensor masked(
    const Target& target,
    const Components& components,
    size_t site,
    const Mask& mask,
    const Tensor& x);

}  // namespace three_pool
