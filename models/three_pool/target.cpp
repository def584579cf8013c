#include <three_pool/target.h>

#include <three_pool/row_normal.h>
#include <three_pool/row_product.h>

#include <algorithm>
#include <cmath>

namespace three_pool {

std::vector<Site> sites_of(const Config& config) {
  std::vector<Site> sites;
  for (int64_t i = 0; i < config.layers; ++i) {
    const auto layer = "layer" + std::to_string(i) + ".";
    const auto components = config.components + 2 * i;
    sites.push_back({layer + "up", config.width, config.hidden, components});
    sites.push_back({layer + "down", config.hidden, config.width, components + 1});
  }
  return sites;
}

Target::Target(const Config& config, uint64_t seed, at::ScalarType dtype)
    : sites_(sites_of(config)) {
  for (const auto& site : sites_) {
    const double scale = 1 / std::sqrt(static_cast<double>(site.in));
    weights_.push_back(
        row_normal(seed, "weight/" + site.name, {0, site.out}, {site.in}, dtype) * scale);
    biases_.push_back(row_normal(seed, "bias/" + site.name, {0, site.out}, {}, dtype) * scale);
  }
}

Tensor Target::forward(Tensor x, const Linear& linear) const {
  const auto seen = at::arange(1, x.size(1) + 1, x.options()).unsqueeze(-1);
  for (size_t s = 0; s < sites_.size(); s += 2) {
    x = x + x.cumsum(1) / seen;
    const auto normed = at::layer_norm(x, {x.size(-1)});
    x = x + linear(s + 1, at::gelu(linear(s, normed)));
  }
  return x;
}

Tensor Target::forward(const Tensor& x) const {
  return forward(x, [this](size_t site, const Tensor& input) { return plain(site, input); });
}

Tensor Target::activations(const Tensor& x) const {
  std::vector<Tensor> inputs;
  forward(x, [&](size_t site, const Tensor& input) {
    inputs.push_back(input);
    return plain(site, input);
  });
  return at::cat(inputs, -1);
}

Tensor Target::plain(size_t site, const Tensor& x) const {
  return row_product(x, weights_[site].t()) + biases_[site];
}

int64_t Target::weight_count(size_t begin, size_t end) const {
  int64_t count = 0;
  for (size_t s = begin; s < std::min(end, weights_.size()); ++s) {
    count += weights_[s].numel();
  }
  return count;
}

}  // namespace three_pool
