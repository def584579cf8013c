#include <three_pool/rank.h>

#include <retape/dist/dist.h>

namespace three_pool {

namespace {

using namespace retape::dist;

class BlockRank {
 public:
  BlockRank(const Rank& rank, int block)
      : rank_(rank),
        name_(block_name(block)),
        sites_(rank.sites_of_block(block)),
        pool_(rank.placement.group(name_)),
        layerwise_(rank.placement.group("layerwise")),
        components_(rank.config, rank.run.seed, rank.run.dtype),
        owned_(components_.named(rank.target.sites(), sites_.begin, sites_.end), rank.config) {
    if (rank.weight("stoch") != 0) {
      from_ci_ = rank.lower_edge(name_);
    }
    if (rank.weight("ppgd") != 0 && pool_.leads()) {
      link_ = rank.placement.group(link_name(block));
      leaders_ = rank.placement.group(leaders_name(block));
    }
  }

  void step(int step, Outcome& outcome) {
    owned_.zero();
    backward(step, outcome);
    if (rank_.weight("ppgd") != 0) {
      add_gradients_of_ppgd();
    }
    SumReducer reducer(pool_);
    reducer.add_gradients(owned_.named());
    reducer.reduce();
    owned_.report_gradients(outcome);
    outcome.norms["V/U"] = clip_grad_norm(
        {{owned_.tensors(), pool_}}, rank_.config.component_norm, layerwise_);
    if (rank_.run.steps > 0) {
      owned_.step();
      owned_.report_parameters(outcome);
      if (link_) {
        rank_.broadcast("V/U", *link_, kBlockLeader, owned_.tensors());
      }
    }
  }

 private:
  void backward(int step, Outcome& outcome) {
    Partial<Tensor> loss(at::zeros({}, components_.v.front().options()));
    if (const double weight = rank_.weight("faith")) {
      const auto weights = static_cast<double>(rank_.target.weight_count());
      double error = 0;
      const auto faith = [&] {
        const auto own = faith_error(rank_.target, components_, sites_);
        error = own.item<double>();
        return Replicated<Tensor>(own / weights) * weight;
      };
      loss = loss + contribute_once("faith", loss.value(), faith, pool_);
      const auto count = pool_.leads() ? rank_.target.weight_count(sites_.begin, sites_.end)
                                       : 0;  // whose error the leader has
      outcome.losses["faith"] = global_mean("faith", error, count, layerwise_);
    }
    if (!from_ci_) {
      if (loss.value().requires_grad()) {
        loss.value().backward();
      }
      return;
    }
    const auto like = at::empty(
        {1, rank_.config.positions, column_count(rank_.target.sites(), sites_)},
        loss.value().options());
    const auto low = from_ci_->receive("lower", like);
    Reconstruction reconstruction(rank_.target, rank_.config, rank_.batch(name_, step));
    const auto error = reconstruction.stoch_error(
        components_, low, sites_, rank_.run.seed, step, rank_.placement.rows(name_));
    const auto count = count_global("stoch count", reconstruction.count(), pool_);
    const double each = rank_.weight("stoch") / static_cast<double>(rank_.target.sites().size());
    loss = loss + normalize(error, count) * each;
    loss.value().backward();
    const auto errors = reconstruction.count() * static_cast<int64_t>(sites_.size());
    outcome.losses["stoch"] = global_mean("stoch", error.item<double>(), errors, layerwise_);
    from_ci_->send_gradient("lower", low.grad(), low);
  }

  // They are sums over ppgd already, and the leader alone has them.
  void add_gradients_of_ppgd() {
    const auto parameters = owned_.tensors();
    std::vector<Tensor> gradients;
    for (const auto& parameter : parameters) {
      gradients.push_back(at::zeros_like(parameter.grad()));
    }
    if (leaders_) {
      rank_.broadcast("gradients of V/U", *leaders_, kPpgdLeader, gradients);
    }
    const auto part =
        contribute_from("ppgd V/U", at::flatten_dense_tensors(gradients), pool_).value();
    const auto parts = at::unflatten_dense_tensors(part, gradients);
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].grad().add_(parts[i]);
    }
  }

  const Rank& rank_;
  std::string name_;
  SiteRange sites_;
  Group pool_, layerwise_;
  Components components_;
  Owned owned_;
  std::optional<Edge> from_ci_;
  std::optional<Group> link_, leaders_;
};

}  // namespace

Outcome run_block(const Rank& rank, int block) {
  BlockRank trainer(rank, block);
  return rank.all_steps(trainer);
}

}  // namespace three_pool
