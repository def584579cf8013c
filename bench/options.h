// The command line of retape_bench: its own options beside Google Benchmark's.
#pragma once

#include "blocks.h"

#include "train/error.h"
#include "train/spelling.h"

#include <retape/retape.h>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

namespace retape::bench {

struct Options {
  bool dry = false;
  bool scaled = true;
  std::vector<int64_t> layers;
  Size size;
};

// What Google Benchmark prints for --help says nothing of this program: that comes first.
inline void print_help() {
  std::cout
      << R"(retape_bench: six blocks, as stacks of layers, float32 and bfloat16, plain and with Retape.

usage: retape_bench [options]
  --dry            bytes and FLOPs alone: nothing is computed, so the large size takes seconds
  --layers=N       of a stack; again for more    (1 and 8)
  --d_model=N      width of the blocks' input    (512; with --dry 2048)
  --d_ff=N         width of their inner part     (2048; with --dry 8192)
  --batch=N        sequences in a batch          (2)
  --sequence=N     tokens in a sequence          (512; with --dry 2048)
  --inject=FAULT   in a build with faults: one that must be noticed, such as one-ulp
  --unscaled       weights as they are initialised: eight swiglu layers then have gradients of zero
  --help           this page

Names may have dashes, and values stand apart, as with the bench in Python: --d-model 512.
Rows are named BLOCK/LAYERS/DTYPE/METHOD; --benchmark_filter=swiglu/8/float32 takes some of them.
Unless --benchmark_repetitions or --benchmark_min_time say otherwise, times are the median of 5
repetitions, and a row _cv below it has their spread: of a time the deviation as a share of it, of delta_%
the deviation in percent of plain's time.

ends with: 0, 1 if gradients are not what a method promises (DIFFERENT), 2 for wrong arguments or where no
row has such a name, 6 if gradients are equal because every one is zero (ALL ZERO), which proves nothing

example:
  retape_bench --benchmark_filter=swiglu/8/float32

Google Benchmark's own:
)" << std::flush;
  benchmark::PrintDefaultHelp();
}

using Arguments = std::vector<std::string>;

[[noreturn]] inline void refuse(
    const std::string& why, const std::string& fix = "Fix: retape_bench --help") {
  std::cerr << "[retape_bench] " << why << ". " << fix << "\n";
  std::exit(2);
}

// Without its dashes and its value, and with underscores: "--d-model=64" is d_model.
inline std::string name_in(const std::string& arg) {
  auto name = arg.substr(0, arg.find('='));
  name.erase(0, name.rfind("--", 0) == 0 ? 2 : name.size());
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

inline Arguments::iterator find(Arguments& args, const std::string& name) {
  return std::find_if(
      args.begin() + 1, args.end(), [&](const auto& arg) { return name_in(arg) == name; });
}

// Takes `--name` out of the arguments.
inline bool take_switch(Arguments& args, const std::string& name) {
  const auto it = find(args, name);
  if (it == args.end()) {
    return false;
  }
  if (it->find('=') != std::string::npos) {
    refuse("--" + name + ": expected no value, got \"" + it->substr(it->find('=') + 1) + "\"");
  }
  args.erase(it);
  return true;
}

// Takes `--name=123` or `--name 123`.
inline std::optional<std::string> take(Arguments& args, const std::string& name) {
  const auto it = find(args, name);
  if (it == args.end()) {
    return std::nullopt;
  }
  const auto equals = it->find('=');
  const auto next = it + 1;
  const bool is_apart = equals == std::string::npos && next != args.end() &&
      next->rfind("--", 0) != 0;
  const auto value = equals != std::string::npos ? it->substr(equals + 1) : is_apart ? *next : "";
  args.erase(it, is_apart ? next + 1 : next);
  return value;
}

// Where a size is more than memory holds, or than can be counted.
inline void refuse_if_too_large(const std::exception& error) {
  const auto text = train::first_line(error);
  if (train::is_out_of_memory(error) || text.find("overflow") != std::string::npos) {
    refuse("a step does not fit into memory: " + text, "Fix: a smaller size.");
  }
}

inline std::optional<int64_t> take_number(Arguments& args, const std::string& name) {
  const auto text = take(args, name);
  if (!text) {
    return std::nullopt;
  }
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error == std::errc::result_out_of_range && (*text)[0] != '-') {
    refuse(
        "--" + name + ": expected at most " + std::to_string(INT64_MAX) + ", got \"" + *text +
        "\"");
  }
  if (error != std::errc() || end != text->data() + text->size() || number < 1) {
    refuse("--" + name + ": expected a number of at least 1, got \"" + *text + "\"");
  }
  return number;
}

inline void take_fault(Arguments& args) {
  const auto fault = take(args, "inject");
  if (!fault) {
    return;
  }
  try {
    detail::inject(*fault);
  } catch (const UsageError& error) {
    refuse(std::string("--inject: ") + error.what());
  }
}

// Leaves in `args` what is Google Benchmark's.
inline Options take_options(Arguments& args) {
  Options options;
  auto& size = options.size;
  options.dry = take_switch(args, "dry");
  options.scaled = !take_switch(args, "unscaled");
  while (const auto layers = take_number(args, "layers")) {
    if (std::find(options.layers.begin(), options.layers.end(), *layers) == options.layers.end()) {
      options.layers.push_back(*layers);
    }
  }
  if (options.layers.empty()) {
    options.layers = {1, 8};
  }
  size.d_model = take_number(args, "d_model").value_or(options.dry ? 2048 : 512);
  size.d_ff = take_number(args, "d_ff").value_or(options.dry ? 8192 : 2048);
  size.batch = take_number(args, "batch").value_or(size.batch);
  size.sequence = take_number(args, "sequence").value_or(options.dry ? 2048 : 512);
  take_fault(args);
  return options;
}

// In an argument or, as Google Benchmark takes it too, in the environment.
inline bool is_said(const Arguments& args, const std::string& name) {
  auto variable = name;
  std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char c) {
    return std::toupper(c);
  });
  return std::getenv(variable.c_str()) != nullptr ||
      std::any_of(args.begin(), args.end(), [&](const auto& arg) { return name_in(arg) == name; });
}

// JSON and CSV are for programs.
inline bool is_for_people(const Arguments& args) {
  return std::none_of(args.begin(), args.end(), [](const auto& arg) {
    return name_in(arg) == "benchmark_format" && arg.substr(arg.find('=') + 1) != "console";
  });
}

// A time without a spread cannot be judged. Rows are not shuffled: each step has one of plain
// beside it already, and what is done is shown while the rest runs.
inline void repeat_unless_told(Arguments& args) {
  if (!is_said(args, "benchmark_repetitions") && !is_said(args, "benchmark_min_time")) {
    args.insert(
        args.begin() + 1,
        {"--benchmark_repetitions=5",
         "--benchmark_min_time=0.1",
         "--benchmark_display_aggregates_only=true"});
  }
}

inline void initialize_benchmark(Arguments& args) {
  std::vector<char*> words;
  for (auto& arg : args) {
    words.push_back(arg.data());
  }
  int count = static_cast<int>(words.size());
  words.push_back(nullptr);
  benchmark::Initialize(&count, words.data(), &print_help);
  if (count > 1) {
    const std::vector<std::string> known{
        "--dry",
        "--layers",
        "--d_model",
        "--d_ff",
        "--batch",
        "--sequence",
        "--inject",
        "--unscaled",
        "--help",
        "--benchmark_filter",
        "--benchmark_format",
        "--benchmark_list_tests",
        "--benchmark_min_time",
        "--benchmark_out",
        "--benchmark_repetitions"};
    const std::string word = words[1];
    refuse("unknown argument " + word, train::offer(word.substr(0, word.find('=')), known));
  }
}

}  // namespace retape::bench
