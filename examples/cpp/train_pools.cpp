// Parameter decomposition, trained by ten ranks of three pools, on this machine: four for the CI
// function, two for each of two blocks, two for adversarial sources. Then the same in one process,
// to see that it is the same.
//
//   train_pools [STEPS]
#include <ranks/launch.h>
#include <three_pool/trainer.h>

#include <cstdio>
#include <cstdlib>

namespace {

constexpr three_pool::PoolSizes kSizes{.ci = 4, .per_block = 2, .blocks = 2, .ppgd = 2};

// Of each term one rank tells: the first that has it.
void tell(int rank, int step, const std::map<std::string, double>& losses) {
  const bool leads = rank == 0 || rank == kSizes.ci || rank == kSizes.ranks() - kSizes.ppgd;
  for (const auto& [term, loss] : losses) {
    if (leads) {
      std::printf("step %d  %-5s  %.6f\n", step + 1, term.c_str(), loss);
      std::fflush(stdout);  // ranks share it
    }
  }
}

double apart(const retape::dist::Outcome& found, const retape::dist::Outcome& expected) {
  double largest = 0;
  for (const auto& [name, parameter] : found.parameters) {
    const auto difference = (parameter - expected.parameters.at(name)).abs().max().item<double>();
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 5;
  if (argc > 2 || steps < 1) {
    std::fprintf(
        stderr, "[train_pools] expected a number of steps, at least 1. Fix: train_pools 5\n");
    return 2;
  }
  at::set_num_threads(1);  // ranks are forked, which a process with threads cannot do
  retape::dist::Case run{three_pool::make_topology(kSizes), three_pool::all_terms()};
  run.steps = steps;
  const auto expected = three_pool::reference(run);
  const auto ends = ranks::run_ranks(kSizes.ranks(), [&](ranks::World& world) {
    three_pool::Config config;
    config.on_step = [&](int step, const auto& losses) { tell(world.rank(), step, losses); };
    const auto found = three_pool::distributed(run, world, config);
    double largest = 0;
    for (const auto& there :
         world.all().gather("apart", at::full({1}, apart(found, expected), at::kDouble))) {
      largest = std::max(largest, there.item<double>());
    }
    if (!(largest < 1e-13)) {
      throw std::runtime_error("ranks differ from one process");
    }
    if (world.rank() == 0) {
      std::printf(
          "after %d steps no parameter of any rank is further than %.1g from one process\n",
          steps,
          largest);
    }
  });
  for (const auto& end : ends) {
    if (end.exit_code != 0) {
      std::fprintf(stderr, "%s\n", end.error.c_str());
      return 5;
    }
  }
}
