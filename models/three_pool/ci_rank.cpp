#include <three_pool/rank.h>

#include <three_pool/ci_function.h>

#include <retape/dist/dist.h>

namespace three_pool {

namespace {

using namespace retape::dist;

class CiRank {
 public:
  explicit CiRank(const Rank& rank)
      : rank_(rank),
        pool_(rank.placement.group("ci")),
        ci_(rank.config, rank.run.seed, rank.run.dtype),
        theta_(ci_.named(), rank.config) {
    for (int b = 0; b < rank.sizes.blocks && rank.weight("stoch") != 0; ++b) {
      to_blocks_.push_back(rank.lower_edge(block_name(b)));
    }
    if (rank.weight("ppgd") != 0) {
      to_ppgd_ = rank.lower_edge("ppgd");
    }
  }

  void step(int step, Outcome& outcome) {
    theta_.zero();
    const auto x = rank_.batch("ci", step);
    const auto bounded = ci_.forward(rank_.target.activations(x));
    const auto low = lower(bounded);
    send(low);
    const auto imp = importance_part(bounded, x.size(0) * x.size(1), step, outcome);
    const auto gradient = receive(low);
    // One backward: `lower` must see the gradients of all receivers added up.
    if (imp.defined()) {
      torch::autograd::backward({low, imp}, {gradient, Tensor()});
    } else {
      torch::autograd::backward({low}, {gradient});
    }
    SumReducer reducer(pool_);
    reducer.add_gradients(theta_.named());
    reducer.reduce();
    theta_.report_gradients(outcome);
    outcome.norms["theta"] = clip_grad_norm(
        {{theta_.tensors(), pool_}}, rank_.config.ci_norm, pool_);
    if (rank_.run.steps > 0) {
      theta_.step();
      theta_.report_parameters(outcome);
    }
  }

 private:
  Tensor columns(const Tensor& low, int block) const {
    const auto sites = rank_.sites_of_block(block);
    const auto& all = rank_.target.sites();
    return low.narrow(-1, column_count(all, {0, sites.begin}), column_count(all, sites));
  }

  void send(const Tensor& low) const {
    for (size_t b = 0; b < to_blocks_.size(); ++b) {
      to_blocks_[b].send("lower", columns(low, static_cast<int>(b)));
    }
    if (to_ppgd_) {
      to_ppgd_->send("lower", low);
    }
  }

  Tensor receive(const Tensor& low) const {
    auto sum = at::zeros_like(low);
    for (size_t b = 0; b < to_blocks_.size(); ++b) {
      const auto own = columns(sum, static_cast<int>(b));
      own.add_(to_blocks_[b].receive_gradient("lower", own));
    }
    return to_ppgd_ ? sum + to_ppgd_->receive_gradient("lower", sum) : sum;
  }

  // The term of the whole batch, with the gradient of this rank's rows.
  Tensor importance_part(
      const Tensor& bounded, int64_t positions, int step, Outcome& outcome) const {
    const double weight = rank_.weight("imp");
    if (weight == 0) {
      return {};
    }
    const auto local = importance_sums(upper(bounded), rank_.config, step);
    const auto sums = global_residual("imp sums", local, pool_);
    const auto count = count_global("imp positions", positions, pool_);
    const auto imp = normalize(importance(sums, rank_.config), count);
    outcome.losses["imp"] =
        imp.value().item<double>();  // of everybody's sums: nothing is left to add
    return (imp * weight).value();
  }

  const Rank& rank_;
  Group pool_;
  CiFunction ci_;
  Owned theta_;
  std::vector<Edge> to_blocks_;
  std::optional<Edge> to_ppgd_;
};

}  // namespace

Outcome run_ci(const Rank& rank) {
  CiRank trainer(rank);
  return rank.all_steps(trainer);
}

}  // namespace three_pool
