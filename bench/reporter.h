// What is shown of repetitions: a row with their medians, and one with their spread.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace retape::bench {

// In front of the reporter that --benchmark_format asks for. Google Benchmark would also show mean
// and deviation, and deviations as shares of what is zero for plain.
class MedianAndSpread final : public benchmark::BenchmarkReporter {
 public:
  // For people bytes are MiB, and what is large is written out; for programs all are numbers.
  explicit MedianAndSpread(bool for_people) : for_people_(for_people) {}

  bool ReportContext(const Context& context) override { return behind_->ReportContext(context); }

  void ReportRuns(const std::vector<Run>& runs) override {
    std::vector<Run> shown;
    for (const auto& run : runs) {
      if (run.run_type != Run::RT_Aggregate || run.aggregate_name == "median") {
        shown.push_back(for_people_ ? in_words(run) : run);
      } else if (run.aggregate_name == "cv") {
        shown.push_back(spread(run, runs));
      }
    }
    if (!shown.empty()) {
      behind_->ReportRuns(shown);
    }
  }

  void Finalize() override { behind_->Finalize(); }

 private:
  // Google Benchmark would show thousands of them with a letter: in the label they are as they are.
  static Run in_words(Run run) {
    constexpr double kMiB = 1 << 20;
    const std::tuple<const char*, const char*, double> shown[] = {
        {"peak", "peak %.1f MiB", kMiB},
        {"held", "held %.1f MiB", kMiB},
        {"GFLOP", "%.1f GFLOP", 1}};
    for (const auto& [name, form, unit] : shown) {
      if (const auto found = run.counters.find(name); found != run.counters.end()) {
        char text[64];
        std::snprintf(text, sizeof text, form, found->second.value / unit);
        run.report_label += (run.report_label.empty() ? "" : ", ") + std::string(text);
        run.counters.erase(found);
      }
    }
    return run;
  }

  // Of times. delta_% is a share of plain's time already: of that, the deviation.
  static Run spread(Run run, const std::vector<Run>& runs) {
    auto counters = std::exchange(run.counters, {});
    for (const auto* name : {"forward_ms", "backward_ms"}) {
      if (const auto found = counters.find(name); found != counters.end()) {
        run.counters.insert(*found);
      }
    }
    const auto deviation = std::find_if(
        runs.begin(), runs.end(), [](const Run& each) { return each.aggregate_name == "stddev"; });
    if (deviation != runs.end() && deviation->counters.count("delta_%") != 0) {
      run.counters["delta_%"] = deviation->counters.at("delta_%") / 100;  // shown in percent
    }
    return run;
  }

  const bool for_people_;
  BenchmarkReporter* behind_ = benchmark::CreateDefaultDisplayReporter();
};

}  // namespace retape::bench
