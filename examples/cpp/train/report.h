// The JSON artefact, of the same shape as that of every `retape` verb.
#pragma once

#include "header.h"
#include "numbers.h"
#include "options.h"
#include "progress.h"

#include <retape/api.h>
#include <torch/version.h>

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
  std::string list;
  for (const float loss : losses) {
    list += (list.empty() ? "" : ", ") + printed_loss(loss);
  }
  const auto number = [](const char* name, const std::string& value) {
    return "    \"" + std::string(name) + "\": " + value + ",\n";
  };
  std::string text =
      "{\n  \"format\": \"retape/1\",\n  \"verb\": \"train\",\n  \"environment\": {\n";
  text += number("retape", quoted(RETAPE_VERSION)) + "    \"torch\": " + quoted(TORCH_VERSION) +
      "\n  },\n";
  text += "  \"arguments\": {\n" + number("policy", quoted(o.policy)) +
      number("layers", std::to_string(o.layers)) + number("width", std::to_string(o.width)) +
      number("heads", std::to_string(o.heads)) + number("context", std::to_string(o.context)) +
      number("batch", std::to_string(o.batch)) + number("dropout", shortest(o.dropout)) +
      number("steps", std::to_string(o.steps)) + number("seed", std::to_string(o.seed)) +
      number("lr", shortest(o.lr)) + number("threads", std::to_string(o.threads)) +
      number("memory_limit", o.memory_limit ? std::to_string(*o.memory_limit) : "null") +
      "    \"resume\": " + (o.resume ? "true" : "false") + "\n  },\n";
  text += "  \"result\": {\n" + number("parameters", std::to_string(parameters)) +
      number("first_step", std::to_string(first_step)) +
      number("step", std::to_string(totals.step)) + number("losses", "[" + list + "]") +
      number("seconds", printed("%.3f", totals.seconds)) +
      number("tokens_per_second", printed("%.1f", totals.tokens_per_second())) +
      number("peak_bytes", std::to_string(totals.peak_bytes)) +
      number("replay_share", printed("%.4f", totals.replay_share())) +
      "    \"error\": " + (error.empty() ? "null" : quoted(error)) + "\n  },\n";
  return text + "  \"exit_code\": " + std::to_string(exit_code) + "\n}\n";
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
