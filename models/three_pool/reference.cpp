#include <three_pool/ci_function.h>
#include <three_pool/owned.h>
#include <three_pool/trainer.h>

namespace three_pool {

namespace {

using retape::dist::Case;
using retape::dist::Outcome;

class Reference {
 public:
  Reference(const Case& run, const Config& config)
      : run_(run),
        config_(config),
        all_{0, run.topology.rows()},
        target_(config, run.seed, run.dtype),
        components_(config, run.seed, run.dtype),
        ci_(config, run.seed, run.dtype),
        sources_(config, run.seed, all_, run.dtype, run.topology),
        theta_(ci_.named(), config),
        owned_(components_.named(target_.sites()), config) {}

  void step(int step, Outcome& outcome) {
    theta_.zero();
    owned_.zero();
    backward(step, outcome);
    theta_.report_gradients(outcome);
    owned_.report_gradients(outcome);
    outcome.norms["theta"] = torch::nn::utils::clip_grad_norm_(theta_.tensors(), config_.ci_norm);
    outcome.norms["V/U"] = torch::nn::utils::clip_grad_norm_(
        owned_.tensors(), config_.component_norm);
    if (run_.steps > 0) {
      theta_.step();
      owned_.step();
    }
    theta_.report_parameters(outcome);
    owned_.report_parameters(outcome);
  }

 private:
  void backward(int step, Outcome& outcome) {
    const auto x = batch_rows(config_, run_.seed, step, all_, run_.dtype);
    const SiteRange sites{0, target_.sites().size()};
    const auto bounded = ci_.forward(target_.activations(x));
    const auto low = lower(bounded);
    Reconstruction reconstruction(target_, config_, x);
    const auto errors = static_cast<double>(reconstruction.count());

    auto loss = at::zeros({}, x.options());
    const auto add = [&](const char* term, double weight, const Tensor& value) {
      outcome.losses[term] = value.item<double>();
      loss = loss + weight * value;
    };
    if (const double weight = weight_of(run_, "faith")) {
      const auto weights = static_cast<double>(target_.weight_count());
      add("faith", weight, faith_error(target_, components_, sites) / weights);
    }
    if (const double weight = weight_of(run_, "imp")) {
      const auto positions = static_cast<double>(x.size(0) * x.size(1));
      const auto sums = importance_sums(upper(bounded), config_, step);
      add("imp", weight, importance(sums, config_) / positions);
    }
    if (const double weight = weight_of(run_, "stoch")) {
      const auto error = reconstruction.stoch_error(components_, low, sites, run_.seed, step, all_);
      add("stoch", weight, error / errors / static_cast<double>(sites.size()));
    }
    std::vector<Tensor> upwards;
    if (const double weight = weight_of(run_, "ppgd")) {
      sources_.warm_up(config_.warmup, [&] {
        return reconstruction.ppgd_error(components_.detached(), low.detach(), sources_);
      });
      const auto error = reconstruction.ppgd_error(components_, low, sources_);
      upwards = torch::autograd::grad({error}, sources_.values(), {}, /*retain_graph=*/true);
      add("ppgd", weight, error / errors);
    }
    if (loss.requires_grad()) {
      loss.backward();
    }
    if (!upwards.empty()) {
      sources_.ascend(upwards);
    }
  }

  const Case& run_;
  const Config& config_;
  retape::dist::RowRange all_;
  Target target_;
  Components components_;
  CiFunction ci_;
  Sources sources_;
  Owned theta_, owned_;
};

}  // namespace

Outcome reference(const Case& run, const Config& config) {
  Reference trainer(run, config);
  Outcome outcome;
  for (int step = 0; step < std::max(run.steps, 1); ++step) {
    trainer.step(step, outcome);
  }
  return outcome;
}

}  // namespace three_pool
