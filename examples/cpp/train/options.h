// The options of train_gpt, and what is said of wrong ones.
#pragma once

#include "numbers.h"
#include "spelling.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace train {

struct Options {
  std::string policy = "full";
  int64_t layers = 4, width = 64, heads = 4, context = 64, batch = 8, steps = 100;
  double dropout = 0.1, lr = 1e-3;
  int64_t seed = 0, threads = 1, save_every = 10;
  std::string text, out = "build/train", json;
  std::optional<int64_t> memory_limit;
  bool resume = false, quiet = false;

  bool plain() const { return policy == "none"; }
};

struct Option {
  std::string name, value, help;  // no value: a switch
  std::function<void(Options&, const std::string&)> set;
};

inline std::string policy_named(const std::string& word) {
  const std::vector<std::string> known{"none", "cheap", "full"};
  if (std::find(known.begin(), known.end(), word) == known.end()) {
    throw Refused("no such value for --policy: '" + word + "'. " + offer(word, known));
  }
  return word;
}

inline const std::vector<Option>& all_options() {
  // What no model is meant to have more of: a slip of the finger is told at once. As in Python.
  constexpr int64_t kLayers = 10'000, kSize = 1'000'000, kThreads = 1024;
  const auto count = [](const char* name,
                        const char* help,
                        int64_t Options::* field,
                        int64_t least,
                        int64_t most = INT64_MAX) {
    return Option{name, "N", help, [=](Options& options, const std::string& word) {
                    options.*field = whole_number(name, word, least, most);
                  }};
  };
  const auto word =
      [](const char* name, const char* value, const char* help, std::string Options::* field) {
        return Option{name, value, help, [=](Options& options, const std::string& given) {
                        options.*field = given;
                      }};
      };
  static const std::vector<Option> options{
      {"--policy",
       "NAME",
       "none (plain autograd), cheap or full (full)",
       [](Options& o, const std::string& w) { o.policy = policy_named(w); }},
      count("--layers", "blocks of the transformer (4)", &Options::layers, 1, kLayers),
      count("--width", "of the residual stream (64)", &Options::width, 1, kSize),
      count("--heads", "of attention (4)", &Options::heads, 1, kSize),
      count("--context", "characters that the model sees (64)", &Options::context, 1, kSize),
      count("--batch", "windows in a step (8)", &Options::batch, 1, kSize),
      {"--dropout",
       "P",
       "share of values that are dropped out (0.1)",
       [](Options& o, const std::string& w) { o.dropout = real_number("--dropout", w, true, 1); }},
      count("--steps", "to train, from the very start (100)", &Options::steps, 1),
      count("--seed", "of weights, dropout and the order of the text (0)", &Options::seed, 0),
      {"--lr",
       "RATE",
       "AdamW's learning rate (0.001)",
       [](Options& o, const std::string& w) { o.lr = real_number("--lr", w, false, 10); }},
      count(
          "--threads",
          "of torch; another number may round otherwise (1)",
          &Options::threads,
          1,
          kThreads),
      word("--text", "FILE", "to learn from (a small generated corpus)", &Options::text),
      word("--out", "FOLDER", "where the run is saved (build/train)", &Options::out),
      count(
          "--save-every", "steps between saves, 0: at the end only (10)", &Options::save_every, 0),
      {"--resume",
       "",
       "go on with the run that is saved in FOLDER; from the start if none is",
       [](Options& o, const std::string&) { o.resume = true; }},
      {"--memory-limit",
       "BYTES",
       "hard limit on what the process may allocate: 256MiB (none)",
       [](Options& o, const std::string& w) {
         o.memory_limit = size_in_bytes("--memory-limit", w);
       }},
      {"--quiet", "", "no progress", [](Options& o, const std::string&) { o.quiet = true; }},
      word(
          "--json",
          "PATH",
          "where the JSON artefact goes, - for standard output (FOLDER/report.json)",
          &Options::json),
  };
  return options;
}

inline std::string help_text() {
  std::string text =
      "usage: train_gpt [options]\n\nTrains a character-level transformer on a text.\n\n";
  for (const auto& option : all_options()) {
    auto left = "  " + option.name + (option.value.empty() ? "" : " " + option.value);
    left.resize(std::max<size_t>(left.size() + 1, 25), ' ');
    text += left + option.help + "\n";
  }
  text += "  --help                 this page\n";
  return text + "\nexample:\n  train_gpt --steps 200 --policy full --out build/train --resume\n";
}

inline Options parse(const std::vector<std::string>& words) {
  Options options;
  for (size_t i = 0; i < words.size(); ++i) {
    const auto equals = words[i].find('=');
    const auto name = words[i].substr(0, equals);
    const auto& all = all_options();
    const auto found = std::find_if(
        all.begin(), all.end(), [&](const Option& option) { return option.name == name; });
    if (found == all.end()) {
      std::vector<std::string> known{"--help"};
      for (const auto& option : all) {
        known.push_back(option.name);
      }
      throw Refused("unknown argument " + name + ". " + offer(name, known));
    }
    if (found->value.empty() && equals != std::string::npos) {
      throw Refused(name + ": expected no value, got '" + words[i].substr(equals + 1) + "'");
    }
    if (found->value.empty()) {
      found->set(options, "");
    } else if (equals != std::string::npos) {
      found->set(options, words[i].substr(equals + 1));
    } else if (++i < words.size()) {
      found->set(options, words[i]);
    } else {
      throw Refused(name + ": expected one argument");
    }
  }
  if (options.width % options.heads != 0) {
    throw Refused(
        "--width: expected a multiple of " + std::to_string(options.heads) + " (--heads), got " +
        std::to_string(options.width));
  }
  if (options.json.empty()) {
    options.json = options.out + "/report.json";
  }
  return options;
}

}  // namespace train
