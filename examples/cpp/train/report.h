// The JSON artefact, of the same shape as that of every `retape` verb.
#pragma once

#include "numbers.h"
#include "options.h"
#include "progress.h"

#include <retape/api.h>
#include <torch/version.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <iostream>
#include <string>
#include <vector>

namespace train {

struct Report {
  int64_t parameters = 0;
  int64_t first_step = 0;  // done before this process
  std::vector<float> losses;
  Totals totals;
  std::string error;

  // Refuses now, not after hours of work, where the artefact cannot be written.
  static void prepare(const Options& options);
  std::string json(const Options& options, int exit_code) const;
  void write(const Options& options, int exit_code) const;
};

inline void Report::prepare(const Options& options) {
  if (options.json != "-" && !std::ofstream(options.json, std::ios::app)) {
    refuse_errno("cannot write " + options.json);
  }
}

inline std::string Report::json(const Options& o, int exit_code) const {
  using Json = nlohmann::ordered_json;
  const auto rounded = [](const char* format, double number) {
    return Json::parse(printed(format, number));
  };
  Json list = Json::array();
  for (const float loss : losses) {
    list.push_back(rounded("%.9g", loss));
  }
  const Json report{
      {"format", "retape/1"},
      {"verb", "train"},
      {"environment", {{"retape", RETAPE_VERSION}, {"torch", TORCH_VERSION}}},
      {"arguments",
       {{"policy", o.policy},
        {"layers", o.layers},
        {"width", o.width},
        {"heads", o.heads},
        {"context", o.context},
        {"batch", o.batch},
        {"dropout", o.dropout},
        {"steps", o.steps},
        {"seed", o.seed},
        {"lr", o.lr},
        {"threads", o.threads},
        {"memory_limit", o.memory_limit ? Json(*o.memory_limit) : Json()},
        {"resume", o.resume}}},
      {"result",
       {{"parameters", parameters},
        {"first_step", first_step},
        {"step", totals.step},
        {"losses", list},
        {"seconds", rounded("%.3f", totals.seconds)},
        {"tokens_per_second", rounded("%.1f", totals.tokens_per_second())},
        {"peak_bytes", totals.peak_bytes},
        {"replay_share", rounded("%.4f", totals.replay_share())},
        {"error", error.empty() ? Json() : Json(error)}}},
      {"exit_code", exit_code}};
  return report.dump(2) + "\n";
}

inline void Report::write(const Options& options, int exit_code) const {
  if (options.json == "-") {
    std::cout << json(options, exit_code) << std::flush;
    return;
  }
  std::ofstream file(options.json);
  file << json(options, exit_code);
  if (!file.flush()) {
    refuse_errno("cannot write " + options.json);
  }
}

}  // namespace train
