#include <three_pool/components.h>

#include <three_pool/row_normal.h>
#include <three_pool/row_product.h>

#include <algorithm>
#include <cmath>

namespace three_pool {

Components::Components(const Config& config, uint64_t seed, at::ScalarType dtype) {
  const auto draw = [&](const std::string& name, int64_t rows, int64_t columns) {
    const double scale = 1 / std::sqrt(static_cast<double>(rows));
    return (row_normal(seed, name, {0, rows}, {columns}, dtype) * scale).requires_grad_();
  };
  for (const auto& site : sites_of(config)) {
    v.push_back(draw("V/" + site.name, site.in, site.components));
    u.push_back(draw("U/" + site.name, site.components, site.out));
  }
}

Named Components::named(const std::vector<Site>& sites, size_t begin, size_t end) const {
  Named named;
  for (size_t s = begin; s < std::min(end, sites.size()); ++s) {
    named.emplace_back("V." + sites[s].name, v[s]);
    named.emplace_back("U." + sites[s].name, u[s]);
  }
  return named;
}

Components Components::detached() const {
  Components copy;
  for (size_t s = 0; s < v.size(); ++s) {
    copy.v.push_back(v[s].detach());
    copy.u.push_back(u[s].detach());
  }
  return copy;
}

Mask mask_of(const Tensor& lower, const Tensor& source) {
  const auto count = lower.size(-1);
  return {lower + (1 - lower) * source.narrow(-1, 0, count), source.select(-1, count)};
}

Tensor delta(const Target& target, const Components& components, size_t site) {
  return target.weight(site) - at::matmul(components.v[site], components.u[site]).t();
}

Tensor masked(
    const Target& target,
    const Components& components,
    size_t site,
    const Mask& mask,
    const Tensor& x) {
  const auto explained = row_product(
      row_product(x, components.v[site]) * mask.components, components.u[site]);
  const auto rest = row_product(x, delta(target, components, site).t());
  return explained + mask.delta.unsqueeze(-1) * rest + target.bias(site);
}

}  // namespace three_pool
