// Six blocks, in C++: time by Google Benchmark, memory to the byte beside it.
//
//   retape_bench                                    # times, at a size of seconds
//   retape_bench --dry --d_model=2048 --d_ff=8192   # bytes of the big size, nothing computed
//   retape_bench --benchmark_filter=swiglu --benchmark_format=json
#include "blocks.h"

#include <retape/retape.h>

#include <benchmark/benchmark.h>

#include <charconv>
#include <functional>
#include <iostream>
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

struct Method {
  std::string name;
  Apply apply = &plain;
  std::optional<Policy> scope = std::nullopt;  // around the whole forward pass
};

const std::vector<Method>& methods() {
  using namespace std::placeholders;
  static const auto* all = new std::vector<Method>{
      {"plain"},
      {"retape lean", &plain, Policy::none()},
      {"retape cheap", std::bind(&scope_per_block, Policy::cheap(), _1, _2)},
      {"retape full", std::bind(&scope_per_block, CheckpointOptions().policy, _1, _2)},
      {"retape cheap, one scope", &plain, Policy::cheap()},
      {"retape full, one scope", &plain, Policy::full()},
      {"output discard", &output_discard},
  };
  return *all;
}

at::Tensor step(const Stack& stack, const at::Tensor& x, const Method& method) {
  std::optional<Recompute> scope;
  if (method.scope) {
    scope.emplace(*method.scope);
  }
  auto y = method.apply(stack, x);
  const auto loss = y.square().mean();  // in one expression the square would live through backward
  scope.reset();
  loss.backward();
  return y;
}

// Bytes of a whole step, parameters and input among them.
void measure_memory(benchmark::State& state, Stack (*make)(const Size&), const Size& size, const Method& method) {
  DryRun dry;
  MemoryMeter meter;
  const auto stack = make(size);
  int64_t parameters = 0;
  for (const auto& block : stack) {
    for (const auto& parameter : block->parameters()) {
      parameters += static_cast<int64_t>(parameter.nbytes());
    }
  }
  const auto x = torch::randn({size.batch, size.sequence, size.d_model}, size.dtype).requires_grad_();
  const auto y = step(stack, x, method);
  state.counters["peak"] = static_cast<double>(meter.peak());
  state.counters["held"] = static_cast<double>(meter.held() - parameters - static_cast<int64_t>(y.nbytes()));
  state.counters["GFLOP"] = static_cast<double>(dry.flops()) / 1e9;
}

void run(benchmark::State& state, Stack (*make)(const Size&), const Size& size, const Method& method, bool dry) {
  measure_memory(state, make, size, method);
  if (dry) {
    for (auto _ : state) {
    }
    return;
  }
  torch::manual_seed(0);
  const auto stack = make(size);
  const auto x = torch::randn({size.batch, size.sequence, size.d_model}, size.dtype).requires_grad_();
  for (auto _ : state) {
    benchmark::DoNotOptimize(step(stack, x, method));
  }
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

}  // namespace

int main(int argc, char** argv) {
  std::vector<char*> args(argv, argv + argc);
  const bool dry = take(args, "dry").has_value();
  Size size;
  size.d_model = dry ? 2048 : 512;
  size.d_ff = dry ? 8192 : 2048;
  size.sequence = dry ? 2048 : 512;
  take_number(args, "d_model", size.d_model);
  take_number(args, "d_ff", size.d_ff);
  take_number(args, "batch", size.batch);
  take_number(args, "sequence", size.sequence);
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
              name.c_str(), [make = make, its, &method, dry](benchmark::State& state) {
                run(state, make, its, method, dry);
              });
          registered->Unit(benchmark::kMillisecond);
          if (dry) {
            registered->Iterations(1);
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
  return 0;
}

}  // namespace retape::bench

int main(int argc, char** argv) {
  return retape::bench::main(argc, argv);
}
