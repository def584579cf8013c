// Six blocks, in C++: time by Google Benchmark, memory to the byte beside it.
//
//   retape_bench                                    # times and their spread
//   retape_bench --dry --layers=8                   # bytes of the big size, nothing computed
//   retape_bench --benchmark_filter=swiglu --benchmark_format=json
//
// Columns: time of a step (this thread's), forward and backward of it, and delta beside plain's of
// the same round; peak and bytes held after forward, saved beside plain; GFLOP run; ops replayed;
// whether gradients are plain's, bit for bit. `--help` says what it ends with.
#include "bits.h"
#include "blocks.h"
#include "options.h"
#include "reporter.h"

#include <retape/retape.h>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>

namespace retape::bench {

namespace {

using Apply = std::function<at::Tensor(const Stack&, at::Tensor)>;

at::Tensor plain(const Stack& stack, at::Tensor x) {
  for (const auto& block : stack) {
    x = block->forward(x);
  }
  return x;
}

at::Tensor scope_per_block(const Policy& policy, const Stack& stack, at::Tensor x) {
  for (const auto& block : stack) {
    Recompute scope(policy);
    x = block->forward(x);
  }
  return x;
}

at::Tensor output_discard(const Stack& stack, at::Tensor x) {
  for (const auto& block : stack) {
    OutputDiscardCheckpoint checkpoint;
    const auto h = checkpoint.checkpoint([&](at::Tensor given) { return block->inner(given); }, x);
    auto y = block->outer(h, x);
    checkpoint.discard_output_and_register_recompute(y);
    x = std::move(y);
  }
  return x;
}

at::Tensor in_rows(const Stack& stack, at::Tensor x) {
  CheckpointOptions options;
  options.rows = Rows(8, true);
  for (const auto& block : stack) {
    x = checkpoint(options, [&](at::Tensor given) { return block->forward(given); }, x);
  }
  return x;
}

struct Method {
  std::string name;
  Apply apply = &plain;
  std::optional<Policy> scope = std::nullopt;  // around the whole forward pass
  bool rounds = false;                         // sums in another order
};

const std::vector<Method>& methods() {
  using namespace std::placeholders;
  static const auto* all = new std::vector<Method>{
      {"plain"},
      {"retape lean", &plain, Policy::none()},
      {"retape cheap", std::bind(&scope_per_block, Policy::cheap(), _1, _2)},
      {"retape full", std::bind(&scope_per_block, CheckpointOptions().policy, _1, _2)},
      {"retape rows", &in_rows, std::nullopt, true},
      {"retape cheap, one scope", &plain, Policy::cheap()},
      {"retape full, one scope", &plain, Policy::full()},
      {"output discard", &output_discard},
  };
  return *all;
}

struct Times {
  double forward, backward;  // seconds
  double total() const { return forward + backward; }
};

// Of this thread: others that want the machine do not count.
double seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

struct Step {
  at::Tensor y;
  Times times;
};

Step step(const Stack& stack, const at::Tensor& x, const Method& method) {
  const auto start = seconds();
  std::optional<Recompute> scope;
  if (method.scope) {
    scope.emplace(*method.scope);
  }
  auto y = method.apply(stack, x);
  const auto loss = y.square().mean();  // in one expression the square would live through backward
  scope.reset();
  const auto middle = seconds();
  const auto seed = at::ones_like(loss);  // that backward() in Python holds one, too, is 4 bytes
  loss.backward(seed);
  return {y, {middle - start, seconds() - middle}};
}

std::vector<at::Tensor> leaves_of(const Stack& stack, const at::Tensor& x) {
  std::vector<at::Tensor> leaves;
  for (const auto& block : stack) {
    for (const auto& parameter : block->parameters()) {
      leaves.push_back(parameter);
    }
  }
  leaves.push_back(x);
  return leaves;
}

struct Memory {
  int64_t peak, held;
  double flops;
  uint64_t replayed;
};

// Bytes of a whole step, parameters and input among them. Nothing is computed.
Memory memory_of(Stack (*make)(const Size&), const Size& size, const Method& method) {
  DryRun dry;
  MemoryMeter meter;
  const auto replayed = ops_replayed();
  const auto stack = make(size);
  int64_t parameters = 0;
  for (const auto& block : stack) {
    for (const auto& parameter : block->parameters()) {
      parameters += static_cast<int64_t>(parameter.nbytes());
    }
  }
  const auto x =
      torch::randn({size.batch, size.sequence, size.d_model}, size.dtype).requires_grad_();
  const auto y = step(stack, x, method).y;
  return {
      meter.peak(),
      meter.held() - parameters - static_cast<int64_t>(y.nbytes()),
      static_cast<double>(dry.flops()),
      ops_replayed() - replayed};
}

std::vector<at::Tensor> gradients_of(
    const Stack& stack, const at::Tensor& x, const Method& method) {
  std::vector<at::Tensor> gradients;
  auto leaves = leaves_of(stack, x);
  for (auto& leaf : leaves) {
    leaf.mutable_grad().reset();
  }
  step(stack, x, method);
  for (const auto& leaf : leaves) {
    gradients.push_back(leaf.grad().contiguous());
  }
  return gradients;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// A step of plain beside each of the method's: what slows one slows the other.
void measure_times(
    benchmark::State& state, const Stack& stack, const at::Tensor& x, const Method& method) {
  const auto& plain_method = methods().front();
  std::vector<double> forward, backward, ratios;
  for (auto _ : state) {
    const auto plain = step(stack, x, plain_method).times;
    const auto times = step(stack, x, method).times;
    state.SetIterationTime(times.total());
    forward.push_back(times.forward);
    backward.push_back(times.backward);
    ratios.push_back(times.total() / plain.total());
  }
  state.counters["forward_ms"] = median(std::move(forward)) * 1e3;
  state.counters["backward_ms"] = median(std::move(backward)) * 1e3;
  state.counters["delta_%"] = &method == &plain_method ? 0 : (median(std::move(ratios)) - 1) * 100;
}

// What the whole program ends with.
struct Verdict {
  bool differs = false, vacuous = false;
  int code() const { return differs ? 1 : vacuous ? 6 : 0; }
};

// A row. Google Benchmark runs it again for every repetition, and to find out how often to iterate:
// what does not depend on the clock is done the first time.
class Row {
 public:
  Row(Stack (*make)(const Size&), const Options& options, const Method& method, Verdict& verdict)
      : make_(make),
        options_(options),
        method_(method),
        verdict_(verdict) {}

  void run(benchmark::State& state) {
    count_bytes(state);
    if (options_.dry) {
      for (auto _ : state) {
      }
      return;
    }
    const auto& size = options_.size;
    torch::manual_seed(0);
    const auto stack = make_(size);
    const auto x =
        torch::randn({size.batch, size.sequence, size.d_model}, size.dtype).requires_grad_();
    if (options_.scaled) {
      scale(stack, x);
    }
    if (!bits_) {
      const auto expected = gradients_of(stack, x, methods().front());
      bits_ = compare(gradients_of(stack, x, method_), expected);
    }
    judge(state);
    measure_times(state, stack, x, method_);
  }

 private:
  void count_bytes(benchmark::State& state) {
    if (!memory_) {
      memory_ = memory_of(make_, options_.size, method_);
      plain_peak_ = memory_of(make_, options_.size, methods().front()).peak;
    }
    state.counters["peak"] = static_cast<double>(memory_->peak);
    state.counters["held"] = static_cast<double>(memory_->held);
    state.counters["saved_%"] = 100 -
        100 * static_cast<double>(memory_->peak) / static_cast<double>(plain_peak_);
    state.counters["GFLOP"] = memory_->flops / 1e9;
    state.counters["replayed"] = static_cast<double>(memory_->replayed);
  }

  void judge(benchmark::State& state) {
    const bool is_rounded = *bits_ == Bits::kRounded && method_.rounds;
    state.counters["bitwise"] = *bits_ == Bits::kSame;
    if (*bits_ == Bits::kZero) {
      verdict_.vacuous = true;
      state.SetLabel("ALL ZERO");
    } else if (*bits_ == Bits::kSame || is_rounded) {
      state.SetLabel(is_rounded ? "equal to rounding" : "bitwise equal");
    } else {
      verdict_.differs = true;
      state.SetLabel("DIFFERENT");
    }
  }

  Stack (*make_)(const Size&);
  const Options options_;
  const Method& method_;
  Verdict& verdict_;
  std::optional<Memory> memory_;
  int64_t plain_peak_ = 0;
  std::optional<Bits> bits_;
};

void add_row(
    const std::string& block, const Options& options, const Method& method, Verdict& verdict) {
  const auto row = std::make_shared<Row>(all_blocks().at(block), options, method, verdict);
  const auto name = block + "/" + std::to_string(options.size.layers) + "/" +
      (options.size.dtype == at::kFloat ? "float32" : "bfloat16") + "/" + method.name;
  auto* added = benchmark::RegisterBenchmark(
      name.c_str(), [row](benchmark::State& state) { row->run(state); });
  added->Unit(benchmark::kMillisecond);
  if (options.dry) {
    added->Iterations(1);
  } else {
    added->UseManualTime();
  }
}

void add_rows(Options options, Verdict& verdict) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t layers : options.layers) {
      options.size.dtype = dtype;
      options.size.layers = layers;
      for (const auto& [block, make] : all_blocks()) {
        for (const auto& method : methods()) {
          add_row(block, options, method, verdict);
        }
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Arguments args(argv, argv + argc);
  const auto options = take_options(args);
  if (!options.dry) {
    repeat_unless_told(args);
  }
  const bool for_people = is_for_people(args);
  initialize_benchmark(args);
  at::set_num_threads(1);
  Verdict verdict;
  add_rows(options, verdict);
  MedianAndSpread reporter(for_people);
  return benchmark::RunSpecifiedBenchmarks(&reporter) == 0 ? 2 : verdict.code();
}

}  // namespace retape::bench

int main(int argc, char** argv) {
  try {
    return retape::bench::main(argc, argv);
  } catch (const std::exception& error) {
    retape::bench::refuse_if_too_large(error);
    std::cerr << "[retape_bench] internal error: " << train::first_line(error) << "\n";
    return train::kInternal;
  }
}
