// Six blocks, in C++: time by Google Benchmark, memory to the byte beside it.
//
//   retape_bench                                    # times, at a size of seconds
//   retape_bench --dry --d_model=2048 --d_ff=8192   # bytes of the big size, nothing computed
//   retape_bench --benchmark_filter=swiglu --benchmark_format=json
//
// Columns: time of a step (this thread's), forward and backward of it, and delta beside plain's of the
// same round; peak and bytes held after forward, saved beside plain; GFLOP run; ops replayed; whether
// gradients are plain's, bit for bit. Ends with 1 if those of a row are not what its method promises.
#include "blocks.h"

#include <retape/retape.h>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <ctime>
#include <functional>
#include <iostream>
#include <limits>
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
  const auto x = torch::randn({size.batch, size.sequence, size.d_model}, size.dtype).requires_grad_();
  const auto y = step(stack, x, method).y;
  return {
      meter.peak(),
      meter.held() - parameters - static_cast<int64_t>(y.nbytes()),
      static_cast<double>(dry.flops()),
      ops_replayed() - replayed};
}

std::vector<at::Tensor> gradients_of(const Stack& stack, const at::Tensor& x, const Method& method) {
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

bool same_bits(const at::Tensor& left, const at::Tensor& right) {
  return left.nbytes() == right.nbytes() &&
      std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

// Of the largest element, as in python/retape/bench/measure.py: some units in the last place.
double tolerance(at::ScalarType dtype) {
  const float ulp = dtype == at::kBFloat16 ? static_cast<float>(std::numeric_limits<at::BFloat16>::epsilon())
                                           : std::numeric_limits<float>::epsilon();
  return std::max(1e-3, 4.0 * static_cast<double>(ulp));
}

// False for NaN.
bool is_close(const at::Tensor& got, const at::Tensor& plain) {
  const auto expected = plain.to(at::kDouble);
  const auto most = tolerance(plain.scalar_type()) * expected.abs().max().item<double>();
  return (got.to(at::kDouble) - expected).abs().max().item<double>() <= most;
}

enum class Bits { kSame, kRounded, kDifferent };

// The worst of them.
Bits compare(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& plain) {
  auto worst = Bits::kSame;
  for (size_t i = 0; i < plain.size(); ++i) {
    if (!same_bits(got[i], plain[i])) {
      worst = std::max(worst, is_close(got[i], plain[i]) ? Bits::kRounded : Bits::kDifferent);
    }
  }
  return worst;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// A step of plain beside each of the method's: what slows one slows the other.
void measure_times(benchmark::State& state, const Stack& stack, const at::Tensor& x, const Method& method) {
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

// Sets `differs` if gradients are not what the method promises.
void run(
    benchmark::State& state,
    Stack (*make)(const Size&),
    const Size& size,
    const Method& method,
    bool dry,
    bool& differs) {
  const auto& plain_method = methods().front();
  const auto memory = memory_of(make, size, method);
  const auto plain = memory_of(make, size, plain_method);
  state.counters["peak"] = static_cast<double>(memory.peak);
  state.counters["held"] = static_cast<double>(memory.held);
  state.counters["saved_%"] = 100 - 100 * static_cast<double>(memory.peak) / static_cast<double>(plain.peak);
  state.counters["GFLOP"] = memory.flops / 1e9;
  state.counters["replayed"] = static_cast<double>(memory.replayed);
  if (dry) {
    for (auto _ : state) {
    }
    return;
  }
  torch::manual_seed(0);
  const auto stack = make(size);
  const auto x = torch::randn({size.batch, size.sequence, size.d_model}, size.dtype).requires_grad_();
  scale(stack, x);
  const auto expected = gradients_of(stack, x, plain_method);
  const auto bits = compare(gradients_of(stack, x, method), expected);
  const bool is_right = bits == Bits::kSame || (bits == Bits::kRounded && method.rounds);
  differs |= !is_right;
  state.counters["bitwise"] = bits == Bits::kSame;
  state.SetLabel(bits == Bits::kSame ? "bitwise equal" : is_right ? "equal to rounding" : "DIFFERENT");
  measure_times(state, stack, x, method);
}

// Takes `--name=123` out of the arguments.
std::optional<std::string> take(std::vector<char*>& args, const std::string& name) {
  for (auto it = args.begin() + 1; it != args.end(); ++it) {
    const std::string arg = *it;
    if (arg == "--" + name || arg.rfind("--" + name + "=", 0) == 0) {
      args.erase(it);
      return arg.size() > name.size() + 3 ? arg.substr(name.size() + 3) : "";
    }
  }
  return std::nullopt;
}

void take_number(std::vector<char*>& args, const std::string& name, int64_t& number) {
  const auto text = take(args, name);
  if (!text) {
    return;
  }
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || end != text->data() + text->size() || number < 1) {
    std::cerr << "[retape_bench] --" << name << ": expected a number of at least 1, got \"" << *text << "\"\n";
    std::exit(2);
  }
}

// `--inject=one-ulp`, in a build with faults: to show that rows that differ are noticed.
void take_fault(std::vector<char*>& args) {
  const auto fault = take(args, "inject");
  if (!fault) {
    return;
  }
  try {
    detail::inject(*fault);
  } catch (const UsageError& error) {
    std::cerr << "[retape_bench] --inject: " << error.what() << "\n";
    std::exit(2);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<char*> args(argv, argv + argc);
  const bool dry = take(args, "dry").has_value();
  at::set_num_threads(1);
  Size size;
  size.d_model = dry ? 2048 : 512;
  size.d_ff = dry ? 8192 : 2048;
  size.sequence = dry ? 2048 : 512;
  take_number(args, "d_model", size.d_model);
  take_number(args, "d_ff", size.d_ff);
  take_number(args, "batch", size.batch);
  take_number(args, "sequence", size.sequence);
  take_fault(args);
  bool differs = false;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t layers : {1, 8}) {
      for (const auto& [block, make] : all_blocks()) {
        for (const auto& method : methods()) {
          auto its = size;
          its.layers = layers;
          its.dtype = dtype;
          const auto name = block + "/" + std::to_string(layers) + "/" +
              (dtype == at::kFloat ? "float32" : "bfloat16") + "/" + method.name;
          auto* registered = benchmark::RegisterBenchmark(
              name.c_str(), [make = make, its, &method, dry, &differs](benchmark::State& state) {
                run(state, make, its, method, dry, differs);
              });
          registered->Unit(benchmark::kMillisecond);
          if (dry) {
            registered->Iterations(1);
          } else {
            registered->UseManualTime();
          }
        }
      }
    }
  }
  int count = static_cast<int>(args.size());
  benchmark::Initialize(&count, args.data());
  if (benchmark::ReportUnrecognizedArguments(count, args.data())) {
    return 2;
  }
  benchmark::RunSpecifiedBenchmarks();
  return differs ? 1 : 0;
}

}  // namespace retape::bench

int main(int argc, char** argv) {
  return retape::bench::main(argc, argv);
}
