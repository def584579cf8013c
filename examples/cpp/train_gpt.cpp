// Trains a character-level transformer on a text, with Retape around the forward pass.
//
//   train_gpt --steps 200 --policy full --out build/train
//   train_gpt --steps 200 --policy full --out build/train --resume     # after any kind of end
//
// Retape's part is the scope in `forward_and_backward`. examples/python/train is the same in
// Python: same options, same files, same losses (docs/train.md).
#include "train/adamw.h"
#include "train/limit.h"
#include "train/model.h"
#include "train/progress.h"
#include "train/report.h"
#include "train/saved_run.h"
#include "train/text.h"

#include <retape/retape.h>

#include <ATen/Parallel.h>

#include <chrono>
#include <cmath>
#include <iostream>

namespace {

using namespace train;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Step {
  at::Tensor loss;
  double replay_seconds = 0;
};

Step forward_and_backward(Gpt& model, const at::Tensor& ids, const Options& options) {
  if (options.plain()) {
    const auto loss = model(ids);
    loss.backward();
    return {loss.detach()};
  }
  retape::Recompute scope(retape::Policy::named(options.policy), "gpt", /*timed=*/true);
  const auto loss = model(ids);
  scope.close();
  loss.backward();
  return {loss.detach(), scope.stats().replay_ns * 1e-9};
}

class Training {
 public:
  Training(const Options& options, const Text& text, Report& report)
      : options_(options),
        text_(text),
        report_(report),
        progress_(options.quiet),
        saved_(options, text),
        model_(make(options, text)),
        adamw_(*model_, options.lr) {
    for (const auto& parameter : adamw_.parameters) {
      report_.parameters += parameter.numel();
    }
    report_.totals.steps = options_.steps;
  }

  void resume() {
    if (options_.resume && saved_.exists()) {
      report_.totals.step = report_.first_step = saved_.load(adamw_);
      progress_.note("Going on after step " + std::to_string(report_.first_step) + ".");
    } else if (options_.resume) {
      progress_.note("No saved run in " + options_.out + ": from the start.");
    } else if (saved_.exists()) {
      throw Refused(
          "--out: there is a saved run in " + options_.out + ". Fix: --resume, or another --out");
    }
    saved_.remove_half_saved();
  }

  void run() {
    // Tensors throw where memory is short. oneDNN crashes where its own small allocations fail, so
    // room for those is checked first.
    at::empty({1 << 20}, at::kByte);
    auto& totals = report_.totals;
    while (totals.step < options_.steps) {
      step();
      progress_.step(totals);
      const bool last = totals.step == options_.steps;
      if (last || (options_.save_every > 0 && totals.step % options_.save_every == 0)) {
        saved_.save(totals.step, adamw_);
      }
    }
  }

 private:
  static Gpt make(const Options& options, const Text& text) {
    at::manual_seed(options.seed);
    return Gpt(static_cast<int64_t>(text.alphabet().size()), options);
  }

  void step() {
    auto& totals = report_.totals;
    const auto start = Clock::now();
    const auto position = totals.step * options_.batch;
    const auto ids = text_.batch(options_.seed, position, options_.batch, options_.context);
    adamw_.zero_grad();
    const auto [loss, replay_seconds] = forward_and_backward(model_, ids, options_);
    adamw_.step();
    ++totals.step;
    totals.loss = loss.item<float>();
    totals.seconds += seconds_since(start);
    totals.replay_seconds += replay_seconds;
    totals.tokens += options_.batch * options_.context;
    totals.peak_bytes = meter_.peak();
    report_.losses.push_back(totals.loss);
    if (!std::isfinite(totals.loss)) {
      throw Refused(
          "step " + std::to_string(totals.step) + ": the loss is not finite. Fix: a smaller --lr");
    }
  }

  const Options& options_;
  const Text& text_;
  Report& report_;
  Progress progress_;
  SavedRun saved_;
  retape::MemoryMeter meter_;  // before the model: parameters and moments count
  Gpt model_;
  AdamW adamw_;
};

std::string summary(const Report& report, const Options& options) {
  const auto& totals = report.totals;
  if (report.losses.empty()) {
    return "Nothing to do: the saved run is at step " + std::to_string(totals.step) + ".";
  }
  return std::to_string(report.losses.size()) + " steps of " + std::to_string(report.parameters) +
      " parameters, policy " + options.policy + ": loss " + printed("%.3f", report.losses.front()) +
      " to " + printed("%.3f", totals.loss) + ", " + printed("%.0f", totals.tokens_per_second()) +
      " tokens/s, peak " + printed_bytes(static_cast<double>(totals.peak_bytes)) + ", " +
      printed("%.1f", 100 * totals.replay_share()) + " % of the time in replay.";
}

void train_as_told(const Options& options, Report& report) {
  at::set_num_threads(static_cast<int>(options.threads));
  const auto text = Text::of_file(options.text);
  if (text.size() <= options.context) {
    throw Refused(
        "--text: expected more than " + std::to_string(options.context) +
        " characters (--context), got " + std::to_string(text.size()));
  }
  const FolderLock lock(options.out);
  Report::prepare(options);
  const MemoryLimit limit(options.memory_limit);
  Training training(options, text, report);
  training.resume();
  training.run();
}

int run(const Options& options) {
  Report report;
  int code = 0;
  try {
    train_as_told(options, report);
    (options.json == "-" ? std::cerr : std::cout) << summary(report, options) << std::endl;
  } catch (const Refused&) {
    throw;
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) {
      throw;
    }
    code = kBudget;
    report.error = "out of memory at step " + std::to_string(report.totals.step + 1);
    if (options.memory_limit) {
      report.error += ": --memory-limit is " +
          printed_bytes(static_cast<double>(*options.memory_limit));
    }
    std::cerr << "[train_gpt] " << report.error << ", policy " << options.policy << ". "
              << (options.policy == "full" ? "Fix: a smaller --batch or --context."
                                           : "Fix: try --policy full.")
              << std::endl;
  }
  report.write(options, code);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (std::find(words.begin(), words.end(), "--help") != words.end()) {
    std::cout << help_text();
    return 0;
  }
  try {
    return run(parse(words));
  } catch (const Refused& error) {
    std::cerr << "[train_gpt] " << error.what() << "\n";
    return kUsage;
  } catch (const std::exception& error) {
    std::cerr << "[train_gpt] internal error: " << first_line(error) << "\n";
    return kInternal;
  }
}
