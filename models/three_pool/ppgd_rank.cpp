#include <three_pool/rank.h>

#include <retape/dist/dist.h>

namespace three_pool {

namespace {

using namespace retape::dist;

class PpgdRank {
 public:
  explicit PpgdRank(const Rank& rank)
      : rank_(rank),
        pool_(rank.placement.group("ppgd")),
        from_ci_(rank.lower_edge("ppgd")),
        components_(rank.config, rank.run.seed, rank.run.dtype),
        sources_(
            rank.config,
            rank.run.seed,
            rank.placement.rows("ppgd"),
            rank.run.dtype,
            rank.run.topology) {
    for (int b = 0; b < rank.sizes.blocks; ++b) {
      links_.push_back(rank.placement.group(link_name(b)));
      if (pool_.leads()) {
        leaders_.push_back(rank.placement.group(leaders_name(b)));
      }
    }
  }

  void step(int step, Outcome& outcome) {
    const auto& sites = rank_.target.sites();
    const auto like = at::empty(
        {1, rank_.config.positions, column_count(sites, {0, sites.size()})},
        components_.v.front().options());
    const auto low = from_ci_.receive("lower", like);
    Reconstruction reconstruction(rank_.target, rank_.config, rank_.batch("ppgd", step));
    const auto count = count_global("ppgd count", reconstruction.count(), pool_);
    sources_.warm_up(rank_.config.warmup, [&] {
      return reconstruction.ppgd_error(components_.detached(), low.detach(), sources_);
    });

    // One backward of the plain sum of errors; everybody divides what he gets.
    const auto named = components_.named(sites);
    std::vector<Tensor> inputs{low};
    for (const auto& [name, parameter] : named) {
      inputs.push_back(parameter);
    }
    inputs.insert(inputs.end(), sources_.values().begin(), sources_.values().end());
    const auto error = reconstruction.ppgd_error(components_, low, sources_);
    const auto gradients = torch::autograd::grad({error}, inputs);
    outcome.losses["ppgd"] = global_mean(
        "ppgd", error.item<double>(), reconstruction.count(), pool_);

    const auto part = [&](size_t i) {
      return normalize(gradients[i], count) * rank_.weight("ppgd");
    };
    from_ci_.send_gradient("lower", part(0).value(), low);
    SumReducer reducer(pool_);
    Named sums;
    for (size_t i = 0; i < named.size(); ++i) {
      const auto own = part(1 + i);
      reducer.add("ppgd " + named[i].first, own);
      sums.emplace_back(named[i].first, own.value());
    }
    reducer.reduce();
    sources_.ascend({gradients.begin() + 1 + named.size(), gradients.end()});
    exchange_with_blocks(named, sums);
  }

 private:
  void exchange_with_blocks(const Named& named, const Named& sums) const {
    for (size_t b = 0; b < leaders_.size(); ++b) {
      rank_.broadcast(
          "gradients of V/U", leaders_[b], kPpgdLeader, of_block(sums, static_cast<int>(b)));
    }
    for (int b = 0; b < rank_.sizes.blocks && rank_.run.steps > 0; ++b) {
      rank_.broadcast("V/U", links_[b], kBlockLeader, of_block(named, b));
    }
  }

  std::vector<Tensor> of_block(const Named& named, int block) const {
    const auto sites = rank_.sites_of_block(block);
    std::vector<Tensor> tensors;
    for (size_t i = 2 * sites.begin; i < 2 * sites.end; ++i) {  // V and U of each
      tensors.push_back(named[i].second);
    }
    return tensors;
  }

  const Rank& rank_;
  Group pool_;
  Edge from_ci_;
  Components components_;
  Sources sources_;
  std::vector<Group> links_, leaders_;
};

}  // namespace

Outcome run_ppgd(const Rank& rank) {
  if (rank.weight("ppgd") == 0) {
    return {};
  }
  PpgdRank trainer(rank);
  return rank.all_steps(trainer);
}

}  // namespace three_pool
