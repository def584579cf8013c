#include <three_pool/losses.h>

#include <three_pool/row_normal.h>

#include <retape/dist/row_random.h>

#include <algorithm>
#include <utility>

namespace three_pool {

Tensor faith_error(const Target& target, const Components& components, SiteRange sites) {
  auto sum = at::zeros({}, components.v.front().options());
  for (size_t s = sites.begin; s < sites.end; ++s) {
    sum = sum + delta(target, components, s).square().sum();
  }
  return sum;
}

Tensor importance_sums(const Tensor& upper, const Config& config, int step) {
  const double progress = std::min(1.0, static_cast<double>(step) / config.anneal_steps);
  const double power = config.first_power + (config.last_power - config.first_power) * progress;
  return (upper + 1e-12).pow(power).sum(at::IntArrayRef{0, 1});
}

Tensor importance(const Tensor& sums, const Config& config) {
  return (sums + config.beta * sums * at::log2(1 + sums)).sum();
}

Tensor batch_rows(
    const Config& config,
    uint64_t seed,
    int step,
    retape::dist::RowRange rows,
    at::ScalarType dtype) {
  return row_normal(
      seed, "batch/step" + std::to_string(step), rows, {config.positions, config.width}, dtype);
}

std::vector<Tensor> by_site(const Tensor& columns, const std::vector<Site>& all, SiteRange sites) {
  std::vector<int64_t> sizes;
  for (size_t s = sites.begin; s < sites.end; ++s) {
    sizes.push_back(all[s].components);
  }
  return columns.split_with_sizes(sizes, -1);
}

int64_t column_count(const std::vector<Site>& all, SiteRange sites) {
  int64_t count = 0;
  for (size_t s = sites.begin; s < sites.end; ++s) {
    count += all[s].components;
  }
  return count;
}

Reconstruction::Reconstruction(const Target& target, const Config& config, Tensor x)
    : target_(target),
      config_(config),
      x_(std::move(x)),
      output_(target.forward(x_)) {}

Reconstruction::~Reconstruction() {
  for (const auto& scope : scopes_) {
    if (config_.replayed) {
      *config_.replayed += scope->stats().ops_replayed;
    }
  }
}

Tensor Reconstruction::error(const Components& components, const std::map<size_t, Mask>& masks) {
  const auto run = [&] {
    return target_.forward(x_, [&](size_t site, const Tensor& x) {
      const auto mask = masks.find(site);
      return mask == masks.end() ? target_.plain(site, x)
                                 : masked(target_, components, site, mask->second, x);
    });
  };
  if (!config_.recompute) {
    return error(run());
  }
  scopes_.push_back(
      std::make_unique<retape::Recompute>(retape::Policy::full().anchors(false), "target"));
  const auto output = run();
  scopes_.back()->close();
  return error(output);
}

Tensor Reconstruction::error(const Tensor& output) const {
  if (config_.error == Error::Squares) {
    return (output - output_).square().sum();
  }
  const auto expected = output_.log_softmax(-1);
  return (expected.exp() * (expected - output.log_softmax(-1))).sum();
}

Tensor Reconstruction::stoch_error(
    const Components& components,
    const Tensor& lower,
    SiteRange sites,
    uint64_t seed,
    int step,
    retape::dist::RowRange rows) {
  const auto& all = target_.sites();
  const auto lowers = by_site(lower, all, sites);
  auto sum = at::zeros({}, lower.options());
  for (size_t s = sites.begin; s < sites.end; ++s) {
    const auto source = retape::dist::row_uniform(
        seed,
        "masks/" + all[s].name + "/step" + std::to_string(step),
        rows,
        {lower.size(1), all[s].components + 1},
        lower.scalar_type());
    sum = sum + error(components, {{s, mask_of(lowers[s - sites.begin], source)}});
  }
  return sum;
}

Tensor Reconstruction::ppgd_error(
    const Components& components, const Tensor& lower, const Sources& sources) {
  const auto lowers = by_site(lower, target_.sites(), {0, target_.sites().size()});
  std::map<size_t, Mask> masks;
  for (size_t s = 0; s < lowers.size(); ++s) {
    masks.emplace(s, mask_of(lowers[s], sources.values()[s]));
  }
  return error(components, masks);
}

}  // namespace three_pool
