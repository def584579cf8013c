// All that a run needs to go on as if nothing had happened, in one file: parameters, AdamW's
// moments and steps, the generator's state, where it is in the text, and the settings it depends
// on.
#pragma once

#include "adamw.h"
#include "options.h"
#include "safetensors.h"
#include "text.h"

#include <ATen/CPUGeneratorImpl.h>
#include <sys/file.h>
#include <torch/version.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace train {

// Policy, steps and limits are not among them: they do not change a bit.
inline Metadata settings(const Options& options, const Text& text) {
  return {
      {"layers", std::to_string(options.layers)},
      {"width", std::to_string(options.width)},
      {"heads", std::to_string(options.heads)},
      {"context", std::to_string(options.context)},
      {"batch", std::to_string(options.batch)},
      {"dropout", shortest(options.dropout)},
      {"seed", std::to_string(options.seed)},
      {"lr", shortest(options.lr)},
      {"threads", std::to_string(options.threads)},
      {"text", text.digest()},
  };
}

// For tests, which cannot hit such a moment from outside: with RETAPE_TRAIN_KILL=before-rename:30
// in the environment the process is killed at that moment (of write_safetensors) of the save of
// step 30.
inline void kill_if_told(const std::string& moment, int64_t step) {
  const char* told = std::getenv("RETAPE_TRAIN_KILL");
  if (told != nullptr && told == moment + ":" + std::to_string(step)) {
    std::raise(SIGKILL);
  }
}

class SavedRun {
 public:
  static constexpr const char* kFormat = "retape-train/1";

  SavedRun(const Options& options, const Text& text)
      : path_((std::filesystem::path(options.out) / "run.safetensors").string()),
        settings_(settings(options, text)),
        policy_(options.policy),
        batch_(options.batch),
        alphabet_(at::tensor(text.alphabet(), at::kByte)) {}

  const std::string& path() const { return path_; }
  bool exists() const { return std::filesystem::exists(path_); }

  void save(int64_t step, const AdamW& adamw) const {
    auto metadata = settings_;
    metadata["format"] = kFormat;
    metadata["policy"] = policy_;
    metadata["step"] = std::to_string(step);
    metadata["position"] = std::to_string(step * batch_);  // windows of the text drawn so far
    metadata["torch"] = TORCH_VERSION;
    auto tensors = of(adamw);
    tensors.emplace_back("generator", at::detail::getDefaultCPUGenerator().get_state());
    tensors.emplace_back("alphabet", alphabet_);
    write_safetensors(
        path_, tensors, metadata, [&](const char* moment) { kill_if_told(moment, step); });
  }

  // What a run that was killed within a save may have left. Only for who has the lock of the
  // folder.
  void remove_half_saved() const {
    std::error_code ignored;  // the next save writes over it
    std::filesystem::remove(beside_of(path_), ignored);
  }

  // The step it was saved after. Nothing has changed if it throws for the settings or the file.
  int64_t load(AdamW& adamw) const {
    try {
      SafetensorsFile file(path_);
      check(file.metadata);
      for (const auto& [name, tensor] : of(adamw)) {
        file.read(name, tensor);
      }
      auto generator = at::detail::getDefaultCPUGenerator();
      auto state = at::empty_like(generator.get_state());
      file.read("generator", state);
      try {
        generator.set_state(state);
      } catch (const c10::Error& error) {
        throw Refused(
            std::string("tensor generator has no state of one (") + first_line(error) + ")");
      }
      return whole_number("step", file.metadata.at("step"), 0);
    } catch (const OtherSettings&) {
      throw;
    } catch (const Refused& error) {
      throw Refused(
          path_ + " is not a whole saved run: " + error.what() +
          ". Fix: another --out, or remove it");
    }
  }

 private:
  struct OtherSettings : Refused {
    using Refused::Refused;
  };

  // Tensors of the model and the optimizer; they are the live ones.
  static NamedTensors of(const AdamW& adamw) {
    NamedTensors tensors;
    for (size_t i = 0; i < adamw.names.size(); ++i) {
      tensors.emplace_back("model." + adamw.names[i], adamw.parameters[i].detach());
      tensors.emplace_back("adamw.exp_avg." + adamw.names[i], adamw.exp_avg[i]);
      tensors.emplace_back("adamw.exp_avg_sq." + adamw.names[i], adamw.exp_avg_sq[i]);
      tensors.emplace_back("adamw.step." + adamw.names[i], adamw.steps[i]);
    }
    return tensors;
  }

  void check(const Metadata& saved) const {
    const auto format = saved.find("format");
    if (format == saved.end() || format->second != kFormat) {
      throw Refused("it is a safetensors file of something else");
    }
    std::string differences;
    for (const auto& [name, value] : settings_) {
      const auto found = saved.find(name);
      const auto before = found == saved.end() ? "nothing" : found->second;
      if (before != value) {
        differences += (differences.empty() ? "" : ", ") + ("--" + name) + " (saved " + before +
            ", now " + value + ")";
      }
    }
    if (!differences.empty()) {
      throw OtherSettings(
          "cannot resume " + path_ + " with other settings: " + differences +
          ". Fix: the settings it was saved with, or another --out");
    }
    if (saved.count("step") == 0) {
      throw Refused("it does not say at which step it was saved");
    }
  }

  std::string path_;
  Metadata settings_;
  std::string policy_;
  int64_t batch_;
  at::Tensor alphabet_;
};

// Only one run at a time writes to a folder. The lock goes with the process, however it ends.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder) : folder_(made(folder), O_RDONLY | O_DIRECTORY) {
    if (::flock(folder_.fd(), LOCK_EX | LOCK_NB) != 0) {
      throw Refused("--out: another run is writing to " + folder + ". Fix: another --out");
    }
  }

 private:
  static const std::string& made(const std::string& folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) {
      throw Refused("--out: cannot make the folder " + folder + " (" + error.message() + ")");
    }
    return folder;
  }

  Descriptor folder_;
};

}  // namespace train
