// The three-pool trainer: ten ranks compute what one process computes, and what is broken shows, by
// the factor that was predicted.
#include "dist/gradcheck/fit.h"

#include <ranks/launch.h>
#include <retape/dist/contribution.h>
#include <retape/dist/row_random.h>

#include <three_pool/ci_function.h>
#include <three_pool/faults.h>
#include <three_pool/row_normal.h>
#include <three_pool/trainer.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <sstream>

namespace three_pool {
namespace {

using ranks::World;
using retape::dist::Case;
using retape::dist::Outcome;
using retape::dist::Watch;

constexpr PoolSizes kTen{4, 2, 2, 2};     // 10 ranks
constexpr PoolSizes kFanOut{2, 4, 1, 8};  // CI is the coarsest, all sizes different
constexpr PoolSizes kFanIn{6, 3, 1, 2};   // CI is the finest, all sizes different

// run_ranks forks, which a process with threads cannot do. Without this, the first large op starts
// some.
class ThreePool : public ::testing::Test {
 protected:
  ThreePool() { at::set_num_threads(1); }
};

// Expectations that fail on a rank fail the test.
void on_ranks(PoolSizes sizes, const std::function<void(World&)>& body) {
  const auto ends = ranks::run_ranks(sizes.ranks(), [&](World& world) {
    body(world);
    if (::testing::Test::HasFailure()) {
      throw std::runtime_error("an expectation failed on this rank, see above");
    }
  });
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    EXPECT_EQ(ends[rank].exit_code, 0)
        << "rank " << rank << " of " << sizes.text() << ": " << ends[rank].error;
  }
}

Case make_case(
    PoolSizes sizes, std::map<std::string, double> terms = all_terms(), int64_t rows = 24) {
  return {
      make_topology(sizes, rows),
      std::move(terms),
      at::kDouble,
      std::nullopt,
      /*steps=*/0,
      /*seed=*/7};
}

std::map<std::string, double> only(const std::string& term) {
  return {{term, all_terms().at(term)}};
}

// What one process computes, once: ranks are forked from this one, and find what it knows by then.
const Outcome& one_process(const Case& run, const Config& config = {}) {
  static std::map<std::string, Outcome> known;
  std::ostringstream key;
  key << run.topology.rows() << " " << run.dtype << " " << run.steps << " " << run.seed << " "
      << static_cast<int>(config.source_count) << " " << static_cast<int>(config.error);
  for (const auto& pool : run.topology.pools()) {
    key << " " << pool.name << " " << pool.size();
  }
  for (const auto& [term, weight] : run.terms) {
    key << " " << term << " " << weight;
  }
  const auto [at, is_new] = known.try_emplace(key.str());
  if (is_new) {
    at->second = reference(run, config);
  }
  return at->second;
}

// Each term alone, and all of them; in float32 all.
void know(PoolSizes sizes, int64_t rows = 24) {
  for (const auto& [term, weight] : all_terms()) {
    one_process(make_case(sizes, only(term), rows));
  }
  auto run = make_case(sizes, all_terms(), rows);
  one_process(run);
  run.dtype = at::kFloat;
  one_process(run);
}

constexpr uint64_t kSeeds = 8;

void know_seeds(PoolSizes sizes) {
  auto run = make_case(sizes);
  for (run.seed = 1; run.seed <= kSeeds; ++run.seed) {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      run.dtype = dtype;
      one_process(run);
    }
  }
}

using retape::dist::detail::Fit;

// Where nothing is expected, nothing must be found.
Fit fit(const Tensor& found, const Tensor& expected) {
  if (expected.abs().max().item<double>() == 0) {
    return {found.abs().max().item<double>() == 0 ? 0 : INFINITY, 1, 0, true};
  }
  return retape::dist::detail::fit(expected, found);
}

double largest_error(
    const std::map<std::string, Tensor>& found, const std::map<std::string, Tensor>& expected) {
  double worst = 0;
  for (const auto& [name, tensor] : found) {
    worst = std::max(worst, fit(tensor, expected.at(name)).error);
  }
  return worst;
}

// What a rank does not have is not compared: all that one process has, some rank must have.
template <typename Value>
void expect_held(
    const World& world,
    const std::map<std::string, Value>& found,
    const std::map<std::string, Value>& expected) {
  std::vector<int64_t> here;
  for (const auto& [name, value] : expected) {
    here.push_back(static_cast<int64_t>(found.count(name)));
  }
  auto ranks = at::zeros({static_cast<int64_t>(here.size())}, at::kLong);
  for (const auto& there : world.all().gather("held", at::tensor(here, at::kLong))) {
    ranks += there;
  }
  int64_t next = 0;
  for (const auto& [name, value] : expected) {
    EXPECT_GT(ranks[next++].item<int64_t>(), 0) << "no rank has " << name;
  }
}

double largest_error(
    const World& world,
    const std::map<std::string, Tensor>& found,
    const std::map<std::string, Tensor>& expected) {
  expect_held(world, found, expected);
  return largest_error(found, expected);
}

// The largest of what ranks have; on all of them.
double over_ranks(const World& world, const std::string& name, double here) {
  double largest = 0;
  for (const auto& there : world.all().gather(name, at::full({1}, here, at::kDouble))) {
    largest = std::max(largest, there.item<double>());
  }
  return largest;
}

void show(const World& world, PoolSizes sizes, const std::string& what, double value) {
  if (world.rank() == 0) {
    std::printf("[ measured ] %-8s %-44s %.3g\n", sizes.text().c_str(), what.c_str(), value);
  }
}

void expect_at_most(
    const World& world, PoolSizes sizes, const std::string& what, double here, double bound) {
  const double worst = over_ranks(world, what, here);
  show(world, sizes, what, worst);
  EXPECT_LE(worst, bound) << what;
}

bool same_bits(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b) {
  bool same = a.size() == b.size();
  for (const auto& [name, tensor] : a) {
    const auto other = b.find(name);
    same = same && other != b.end() && tensor.nbytes() == other->second.nbytes() &&
        std::memcmp(
            tensor.contiguous().const_data_ptr(),
            other->second.contiguous().const_data_ptr(),
            tensor.nbytes()) == 0;
  }
  return same;
}

// Every rank of a pool has the same bits as its leader.
void expect_equal_replicas(
    const World& world, const Case& run, const std::map<std::string, Tensor>& tensors) {
  for (const auto& pool : run.topology.pools()) {
    if (pool.index_of(world.rank()) < 0 || pool.name == "ppgd") {
      continue;
    }
    const auto group = world.group(group_name(pool.name, pool.ranks), pool.ranks);
    for (const auto& [name, tensor] : tensors) {
      const auto all = group.gather("replica of " + name, tensor.contiguous());
      EXPECT_TRUE(same_bits({{name, all.front()}}, {{name, tensor}}))
          << name << " on rank " << world.rank();
    }
  }
}

void expect_norms(const World& world, const Outcome& found, const Outcome& expected, double bound) {
  expect_held(world, found.norms, expected.norms);
  for (const auto& [name, norm] : found.norms) {
    EXPECT_GT(norm, 0) << name;
    EXPECT_NEAR(norm / expected.norms.at(name), 1, bound) << name;
  }
}

// The terms as they are logged, by the pools that compute them.
void expect_losses(
    const World& world,
    const Case& run,
    const Outcome& found,
    const Outcome& expected,
    double bound) {
  expect_held(world, found.losses, expected.losses);
  EXPECT_EQ(expected.losses.size(), run.terms.size());
  for (const auto& [name, loss] : found.losses) {
    EXPECT_GT(loss, 0) << name;
    EXPECT_NEAR(loss / expected.losses.at(name), 1, bound) << name;
  }
}

void expect_gradients(const World& world, PoolSizes sizes, int64_t rows = 24) {
  for (const std::string term : {"faith", "imp", "stoch", "ppgd", ""}) {
    const auto run = make_case(sizes, term.empty() ? all_terms() : only(term), rows);
    const auto found = distributed(run, world);
    const auto& expected = one_process(run);
    const auto what = (term.empty() ? "all terms" : term + " alone") + ", " + std::to_string(rows) +
        " rows";
    expect_at_most(
        world,
        sizes,
        "float64, " + what,
        largest_error(world, found.gradients, expected.gradients),
        1e-14);
    expect_equal_replicas(world, run, found.gradients);
    expect_losses(world, run, found, expected, 1e-14);
    if (term.empty()) {
      expect_norms(world, found, expected, 1e-14);
    }
  }
}

void expect_parameters_after_four_steps(const World& world) {
  auto run = make_case(kTen);
  const auto& first = one_process(run);
  run.steps = 4;
  const auto found = distributed(run, world);
  const auto& expected = one_process(run);
  expect_held(world, found.parameters, expected.parameters);
  double worst = 0;
  for (const auto& [name, parameter] : found.parameters) {
    worst = std::max(worst, (parameter - expected.parameters.at(name)).abs().max().item<double>());
  }
  expect_at_most(world, kTen, "float64, parameters after 4 steps, absolute", worst, 1e-15);
  expect_equal_replicas(world, run, found.parameters);
  expect_norms(world, found, expected, 1e-13);
  expect_losses(world, run, found, expected, 1e-13);
  const bool owns = world.rank() < 8;  // ppgd owns none
  EXPECT_EQ(!found.parameters.empty(), owns);
  EXPECT_EQ(largest_error(found.gradients, first.gradients) > 1e-3, owns);  // they have moved
}

Config of_divergences() {
  Config config;
  config.error = Error::Divergence;
  return config;
}

Case divergence_case(PoolSizes sizes, const std::string& term) {
  return make_case(sizes, term.empty() ? all_terms() : only(term), /*rows=*/23);
}

constexpr const char* kDivergenceTerms[] = {"stoch", "ppgd", ""};

void know_divergences(PoolSizes sizes) {
  for (const auto* term : kDivergenceTerms) {
    one_process(divergence_case(sizes, term), of_divergences());
  }
}

// Of a divergence there is one for each position, not one for each element: other counts, the same
// sums.
void expect_divergences(const World& world, PoolSizes sizes) {
  for (const std::string term : kDivergenceTerms) {
    const auto run = divergence_case(sizes, term);
    const auto& expected = one_process(run, of_divergences());
    const auto found = distributed(run, world, of_divergences());
    expect_at_most(
        world,
        sizes,
        "float64, divergences, " + (term.empty() ? "all terms" : term + " alone"),
        largest_error(world, found.gradients, expected.gradients),
        1e-14);
    expect_losses(world, run, found, expected, 1e-14);
  }
}

// By the count of the rank that has them, or of the batch: in either way ranks and one process
// agree. That it is not the same, because of Adam's eps, shows in what a step later the parameters
// are.
void expect_sources_by_either_count(const World& world) {
  auto run = make_case(kTen, all_terms(), /*rows=*/23);
  run.steps = 2;
  Config by_batch;
  by_batch.source_count = SourceCount::Batch;
  const auto& expected = one_process(run, by_batch);
  const auto found = distributed(run, world, by_batch);
  expect_at_most(
      world,
      kTen,
      "float64, sources by the count of the batch",
      largest_error(world, found.gradients, expected.gradients),
      1e-13);
  const double apart = largest_error(expected.gradients, one_process(run).gradients);
  show(world, kTen, "by the rank's count and by the batch's, apart", apart);
  EXPECT_GT(apart, 1e-12);
  EXPECT_LT(apart, 1e-4);
}

void expect_same_bits_recomputed(const World& world) {
  auto run = make_case(kTen);
  run.steps = 2;
  Config recomputed;
  recomputed.recompute = true;
  recomputed.replayed = std::make_shared<uint64_t>(0);
  const auto plain = distributed(run, world);
  const auto found = distributed(run, world, recomputed);
  EXPECT_TRUE(same_bits(plain.gradients, found.gradients));
  EXPECT_TRUE(same_bits(plain.parameters, found.parameters));
  EXPECT_EQ(plain.norms, found.norms);
  EXPECT_EQ(*recomputed.replayed > 0, world.rank() >= 4);  // ci runs no masked target
  const auto one = reference(run), one_recomputed = reference(run, recomputed);
  EXPECT_TRUE(same_bits(one.gradients, one_recomputed.gradients));
  EXPECT_TRUE(same_bits(one.parameters, one_recomputed.parameters));
}

// Ranks and one process make the same float32 numbers of each row, and add them in another order.
// Against float64 one process is no closer than ranks are, and both are further from it than from
// each other.
void expect_float32_of_seeds(const World& world, PoolSizes sizes) {
  auto run = make_case(sizes);
  double apart = 0, ranks_off = 0, one_off = 0;
  for (run.seed = 1; run.seed <= kSeeds; ++run.seed) {
    run.dtype = at::kFloat;
    const auto found = distributed(run, world);
    const auto& one = one_process(run);
    run.dtype = at::kDouble;
    const auto& exact = one_process(run);
    apart = std::max(
        apart, over_ranks(world, "apart", largest_error(world, found.gradients, one.gradients)));
    ranks_off = std::max(
        ranks_off, over_ranks(world, "ranks", largest_error(found.gradients, exact.gradients)));
    one_off = std::max(one_off, largest_error(one.gradients, exact.gradients));
  }
  show(world, sizes, "float32, worst of 8 seeds", apart);
  show(world, sizes, "float32, ranks against float64", ranks_off);
  show(world, sizes, "float32, one process against float64", one_off);
  EXPECT_LE(apart, 4e-7);
  EXPECT_LE(ranks_off, 1.5 * one_off);
}

void expect_float32(const World& world, PoolSizes sizes) {
  auto run = make_case(sizes);
  run.dtype = at::kFloat;
  const auto found = distributed(run, world);
  const auto& expected = one_process(run);
  expect_at_most(
      world,
      sizes,
      "float32, all terms",
      largest_error(world, found.gradients, expected.gradients),
      4e-7);
  double mean = 0;
  for (const auto& [name, gradient] : found.gradients) {
    mean += fit(gradient, expected.gradients.at(name)).alpha /
        static_cast<double>(found.gradients.size());
  }
  const double off = found.gradients.empty() ? 0 : std::abs(mean - 1);
  expect_at_most(world, sizes, "float32, mean ratio less one", off, 5e-7);
  expect_equal_replicas(world, run, found.gradients);
  expect_norms(world, found, expected, 1e-6);
}

// bfloat16 has 8 bits: to round is to be wrong by up to 2^-8. On its way a gradient is rounded
// once, and the lower bound that it was computed with once. With that bound the mask of a site
// changes, and the gradient of a squared error depends on masks twice, by the error and by the
// slope. In ppgd the masks of all sites are one behind the other: 2 * 4 + 1 roundings. To first
// order they add up at worst.
void expect_bfloat16_wire(const World& world) {
  const double tolerance = (2 * static_cast<double>(sites_of(Config{}).size()) + 1) * std::exp2(-8);
  auto run = make_case(kTen);
  run.dtype = at::kFloat;
  run.wire = at::kBFloat16;
  const auto found = distributed(run, world);
  const double here = largest_error(world, found.gradients, one_process(run).gradients);
  show(world, kTen, "float32, bfloat16 wire, derived tolerance", tolerance);
  expect_at_most(world, kTen, "float32, bfloat16 wire, all terms", here, tolerance);
  EXPECT_GT(over_ranks(world, "it was used", here), 1e-5);
  expect_equal_replicas(world, run, found.gradients);
}

TEST_F(ThreePool, ARowHasItsNumbersWhateverTheShard) {
  const auto all = row_normal(3, "batch/step0", {0, 24}, {3, 5}, at::kDouble);
  EXPECT_TRUE(
      all.narrow(0, 7, 6).equal(row_normal(3, "batch/step0", {7, 13}, {3, 5}, at::kDouble)));
  EXPECT_FALSE(all.equal(row_normal(3, "batch/step1", {0, 24}, {3, 5}, at::kDouble)));
  EXPECT_NEAR(all.mean().item<double>(), 0, 0.2);
  EXPECT_NEAR(all.std().item<double>(), 1, 0.2);
}

TEST_F(ThreePool, BoundsHaveTheirOwnBackward) {
  const auto values = at::tensor({-1.0, -1.0, 0.0, 0.5, 0.5, 1.0, 2.0, 2.0}, at::kDouble);
  const auto gradient = at::tensor({3.0, -3.0, -3.0, 3.0, -3.0, 3.0, 3.0, -3.0}, at::kDouble);
  auto x = values.clone().set_requires_grad(true);
  EXPECT_TRUE(lower(x).equal(values.clamp(0, 1)));
  lower(x).backward(gradient);
  EXPECT_TRUE(
      x.grad().allclose(at::tensor({0.0, -0.03, -0.03, 3.0, -3.0, 3.0, 0.0, 0.0}, at::kDouble)));
  x = values.clone().set_requires_grad(true);
  const auto up = upper(x);
  EXPECT_TRUE(up.allclose(at::tensor({0.0, 0.0, 0.0, 0.5, 0.5, 1.0, 1.01, 1.01}, at::kDouble)));
  up.backward(gradient);
  EXPECT_NEAR(x.grad()[6].item<double>(), 0.03, 1e-15);
  EXPECT_NEAR(x.grad()[0].item<double>(), 0, 0);
}

// Why gradients of stoch and ppgd are added before they enter it.
TEST_F(ThreePool, TheLowerBoundTellsASumOfGradientsFromItsParts) {
  const auto backward = [](double gradient) {
    const auto x = at::full({1}, -1.0, at::kDouble).set_requires_grad(true);
    lower(x).backward(at::full({1}, gradient, at::kDouble));
    return x.grad().item<double>();
  };
  EXPECT_NEAR(backward(-3) + backward(2), -0.03, 1e-15);
  EXPECT_NEAR(backward(-3 + 2), -0.01, 1e-15);
}

TEST_F(ThreePool, WithAllComponentsAndTheRestASiteIsItself) {
  const Config config;
  const Target target(config, 7, at::kDouble);
  const Components components(config, 7, at::kDouble);
  const auto x = row_normal(7, "x", {0, 4}, {config.positions, config.width}, at::kDouble);
  const auto whole = target.forward(x, [&](size_t site, const Tensor& input) {
    const auto source = at::ones(
        {4, config.positions, target.sites()[site].components + 1}, at::kDouble);
    return masked(
        target,
        components,
        site,
        mask_of(source.narrow(-1, 1, source.size(-1) - 1) * 0.3, source),
        input);
  });
  EXPECT_LT(fit(whole, target.forward(x)).error, 1e-14);
}

// A term that is a millionth of a gradient could be wrong by any factor, and nobody would see it.
TEST_F(ThreePool, EveryTermIsALargePartOfWhatItReaches) {
  const auto all = reference(make_case(kTen));
  for (const auto& [term, weight] : all_terms()) {
    const auto alone = reference(make_case(kTen, only(term)));
    for (const auto& [name, gradient] : all.gradients) {
      const bool theta = name.starts_with("theta.");
      const double share = (alone.gradients.at(name).norm() / gradient.norm()).item<double>();
      if (theta ? term == "faith" : term == "imp") {
        EXPECT_EQ(share, 0) << term << " in " << name;
      } else {
        EXPECT_GT(share, 0.05) << term << " in " << name;
      }
    }
  }
}

// As Kullback-Leibler's is written down, and divided by positions.
TEST_F(ThreePool, ADivergenceIsOneNumberForEachPosition) {
  const auto config = of_divergences();
  const Target target(config, 7, at::kDouble);
  const Components components(config, 7, at::kDouble);
  const auto x = row_normal(7, "x", {0, 4}, {config.positions, config.width}, at::kDouble);
  const auto lower = at::full(
      {4, config.positions, target.sites()[0].components}, 0.3, at::kDouble);
  Reconstruction reconstruction(target, config, x);
  EXPECT_EQ(reconstruction.count(), 4 * config.positions);
  const auto found = reconstruction.stoch_error(components, lower, {0, 1}, 7, 0, {0, 4});

  const auto source = retape::dist::row_uniform(
      7,
      "masks/" + target.sites()[0].name + "/step0",
      {0, 4},
      {config.positions, lower.size(-1) + 1},
      at::kDouble);
  const auto output = target.forward(x, [&](size_t site, const Tensor& input) {
    return site == 0 ? masked(target, components, 0, mask_of(lower, source), input)
                     : target.plain(site, input);
  });
  const auto p = target.forward(x).softmax(-1), q = output.softmax(-1);
  const double expected = (p * (p / q).log()).sum().item<double>();
  EXPECT_GT(expected, 1e-3);
  EXPECT_NEAR(found.item<double>() / expected, 1, 1e-12);
}

struct Found {
  std::map<std::string, Fit> fits;
  double error = 0;
};

Found with_fault(const World& world, const Case& run, const Fault& fault, const Outcome& expected) {
  Found found;
  const Watch watch(at(fault, run.topology, world.rank()), fault.mutation, fault.factor);
  for (const auto& [name, gradient] : distributed(run, world).gradients) {
    found.fits[name] = fit(gradient, expected.gradients.at(name));
    found.error = std::max(found.error, found.fits[name].error);
  }
  EXPECT_EQ(over_ranks(world, "hit", watch.hit() ? 1 : 0), 1) << fault.name << " has not been made";
  return found;
}

void expect_predicted(const Fault& fault, const Found& found) {
  for (const auto& [name, fit] : found.fits) {
    const auto predicted = name.starts_with("theta.") ? fault.theta : fault.components;
    if (predicted) {
      EXPECT_NEAR(fit.alpha, *predicted, 1e-12 * *predicted) << fault.name << ", " << name;
      EXPECT_LT(fit.residual, 1e-12 * *predicted) << fault.name << ", " << name;
    } else {
      EXPECT_GT(fit.residual, 1e-3) << fault.name << ", " << name;
    }
  }
}

// No factor, and so none that follows from sizes: measured, of the seed and rows of make_case.
void expect_log_of_local_sums(const World& world) {
  const auto run = make_case(kTen, only("imp"));
  const auto all = faults(kTen);
  const auto fault = std::find_if(all.begin(), all.end(), [](const Fault& each) {
    return each.name == "log2 of the local sum";
  });
  const auto found = with_fault(world, run, *fault, one_process(run));
  if (const auto at = found.fits.find("theta.out.weight"); at != found.fits.end()) {
    EXPECT_NEAR(at->second.alpha, 0.760659, 1e-6);
  }
}

std::vector<retape::dist::Break> breaks_of(const State& state, const Case& run, int rank) {
  std::vector<retape::dist::Break> breaks;
  for (const auto& fault : state.faults) {
    breaks.push_back({at(fault, run.topology, rank), fault.mutation, fault.factor});
  }
  return breaks;
}

void expect_state(const World& world, PoolSizes sizes, const State& state) {
  for (const auto& [term, weight] : all_terms()) {
    const auto run = make_case(sizes, only(term));
    const auto& expected = one_process(run);
    const Watch watch(breaks_of(state, run, world.rank()));
    const auto ratios = term == "stoch" ? state.stoch
        : term == "ppgd"                ? state.ppgd
                                        : State::Ratios{1, 1};
    for (const auto& [name, gradient] : distributed(run, world).gradients) {
      const double ratio = name.starts_with("theta.") ? ratios.theta : ratios.components;
      const auto found = fit(gradient, expected.gradients.at(name));
      EXPECT_NEAR(found.alpha, ratio, 1e-12 * ratio) << state.name << ", " << term << ", " << name;
      EXPECT_LT(found.residual, 1e-12 * ratio) << state.name << ", " << term << ", " << name;
    }
  }
}

// Where all pools are of one size every factor cancels another.
void expect_hidden(const World& world, PoolSizes sizes, const State& state) {
  const auto run = make_case(sizes);
  const auto& expected = one_process(run);
  const Watch watch(breaks_of(state, run, world.rank()));
  const double here = largest_error(world, distributed(run, world).gradients, expected.gradients);
  expect_at_most(world, sizes, state.name + ", all terms", here, 1e-14);
}

void expect_faults_seen(const World& world, PoolSizes sizes) {
  const auto& all = one_process(make_case(sizes));
  for (const auto& fault : faults(sizes)) {
    const auto alone = make_case(sizes, only(fault.term));
    expect_predicted(fault, with_fault(world, alone, fault, one_process(alone)));
    // In the sum of all terms, too.
    const auto found = with_fault(world, make_case(sizes), fault, all);
    const double worst = over_ranks(world, "error", found.error);
    show(world, sizes, fault.name, worst);
    if (fault.name == "n_ppgd for n_per_block" && sizes.ppgd == sizes.per_block) {
      EXPECT_LT(worst, 1e-14);  // it cannot be seen here
    } else {
      EXPECT_GT(worst, 1e-2) << fault.name;
    }
  }
}

// One that counts all replicas is too large by the root of their number.
void expect_norms_of_replicas(const World& world) {
  const auto run = make_case(kTen);
  const auto& expected = one_process(run);
  for (const bool theta : {true, false}) {
    const auto ranks = theta ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{4, 5, 6, 7};
    const auto group = group_name(theta ? "ci" : "layerwise", ranks);
    const Watch watch(
        {retape::dist::Place::Norm, "norm", group, 4}, retape::dist::Mutation::EveryReplica);
    for (const auto& [name, norm] : distributed(run, world).norms) {
      const bool wrong = (name == "theta") == theta;
      EXPECT_EQ(watch.hit(), wrong);
      EXPECT_NEAR(norm / expected.norms.at(name), !wrong ? 1 : std::sqrt(theta ? 4 : 2), 1e-14);
    }
  }
}

// Ranks take a while to start, so they do all that there is to do in a topology.
TEST_F(ThreePool, TenRanksComputeWhatOneProcessComputes) {
  know(kTen);
  know(kTen, 23);
  know_seeds(kTen);
  know_divergences(kTen);
  on_ranks(kTen, [](World& world) {
    expect_gradients(world, kTen);
    expect_gradients(world, kTen, /*rows=*/23);  // shards of different sizes
    expect_parameters_after_four_steps(world);
    expect_sources_by_either_count(world);
    expect_divergences(world, kTen);
    expect_same_bits_recomputed(world);
    expect_float32(world, kTen);
    expect_float32_of_seeds(world, kTen);
    expect_bfloat16_wire(world);
  });
}

TEST_F(ThreePool, FaultsChangeGradientsByTheirPredictedRatio) {
  know(kTen);
  on_ranks(kTen, [](World& world) {
    expect_faults_seen(world, kTen);
    expect_norms_of_replicas(world);
  });
}

TEST_F(ThreePool, WhatItOnceWasIsWrongByRatiosOfPoolSizes) {
  know(kTen);
  on_ranks(kTen, [](World& world) {
    expect_log_of_local_sums(world);
    for (const auto& state : states(kTen)) {
      expect_state(world, kTen, state);
    }
    const PoolSizes square{2, 2, 2, 2};
    expect_hidden(world, square, states(square).at(2));  // #545
  });
}

TEST_F(ThreePool, WhereAllSizesDifferNoFaultHides) {
  ASSERT_NE(kFanIn.ppgd, kFanIn.per_block);
  know(kFanIn);
  know_seeds(kFanIn);
  know_divergences(kFanIn);
  on_ranks(kFanIn, [](World& world) {
    expect_gradients(world, kFanIn);
    expect_float32(world, kFanIn);
    expect_float32_of_seeds(world, kFanIn);
    expect_divergences(world, kFanIn);
    expect_faults_seen(world, kFanIn);
    for (const auto& state : states(kFanIn)) {
      expect_state(world, kFanIn, state);
    }
  });
}

// In one world: ranks that a topology has no use for have nothing.
TEST_F(ThreePool, OtherTopologiesComputeTheSame) {
  const std::vector<PoolSizes> others{kFanOut, {1, 1, 1, 1}, {1, 1, 2, 1}, {2, 2, 2, 2}};
  for (const auto sizes : others) {
    know(sizes);
  }
  on_ranks(kFanOut, [&](World& world) {
    for (const auto sizes : others) {
      expect_gradients(world, sizes);
      expect_float32(world, sizes);
    }
    const auto outcome = distributed(make_case({2, 2, 2, 2}), world);
    EXPECT_EQ(outcome.gradients.empty(), world.rank() >= 6);  // ppgd has none either
  });
}

}  // namespace
}  // namespace three_pool
