#include "tape/errors.h"

#include "tape/region.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <atomic>
#include <sstream>

namespace retape {

Error::~Error() = default;
UsageError::~UsageError() = default;
ReplayMismatch::~ReplayMismatch() = default;

namespace detail {

namespace {

std::atomic<ErrorTranslator> translator{nullptr};

template <typename Kind>
[[noreturn]] void translate_and_throw(const Kind& error) {
  if (const auto translate = translator.load()) {
    translate(error);
  }
  throw error;
}

}  // namespace

void raise(const UsageError& error) {
  translate_and_throw(error);
}

void raise(const ReplayMismatch& error) {
  translate_and_throw(error);
}

void set_error_translator(ErrorTranslator to) {
  translator.store(to);
}

std::string where(const Region* region) {
  return region == nullptr || region->name.empty() ? "" : "region \"" + region->name + "\": ";
}

void throw_changed_in_place(
    c10::ScalarType dtype, c10::IntArrayRef sizes, uint32_t version, uint32_t expected) {
  std::ostringstream text;
  text << "one of the variables needed for gradient computation has been modified by an inplace "
       << "operation: [" << c10::toString(dtype) << " " << sizes << "] is at version " << version
       << "; expected version " << expected << " instead.";
  if (!torch::autograd::AnomalyMode::is_enabled()) {
    text << " Hint: enable anomaly detection to find the operation that failed to compute its "
         << "gradient, with torch.autograd.set_detect_anomaly(True).";
  }
  TORCH_CHECK(false, text.str());
}

void throw_root_changed(const Value& root) {
  std::ostringstream text;
  text << "[recompute] " << where(root.region.get()) << "a tensor of " << root.nbytes
       << " bytes that ";
  if (root.readers.empty()) {
    text << "backward replays from ";
  } else {
    const auto& reader = root.readers.front();
    const auto& input = reader.op->inputs[reader.input];
    text << reader.op->info->name.name << " read in forward, " << c10::toString(input.view.dtype())
         << " " << input.view.sizes() << ", and that backward replays it from, ";
  }
  if (root.hold == Hold::Kept && root.data.nbytes() != root.nbytes) {
    text << "was resized: expected " << root.nbytes << " bytes, got " << root.data.nbytes();
  } else {
    text << "has been modified by an inplace operation";
    if (const auto& seen = root.versions.first(); seen.moved()) {
      text << ": expected version " << seen.version << ", got " << seen.counter.current_version();
    }
  }
  text << ". Fix: run backward before changing it, or change it inside the scope, where the tape "
       << "sees it and keeps a copy.";
  throw ReplayMismatch(text.str());
}

void throw_op_gone(const Op& op) {
  const auto& name = op.info->name.name;
  raise(ReplayMismatch(
      "[recompute] " + where(op.region.get()) + name +
      " was recorded in forward and cannot be replayed: its library has been unloaded or reloaded "
      "since. "
      "Fix: keep the torch.library.Library alive until backward is over, or keep the op's results: "
      "Policy.full().keep_ops([\"" +
      name + "\"])."));
}

void throw_other_size(const Op& op, size_t expected, size_t got) {
  std::ostringstream text;
  text << "[recompute] " << where(op.region.get()) << op.info->name.name
       << " replayed a result of another size: expected " << expected << " bytes, got " << got
       << ". Fix: keep it: Policy::keep_ops({\"" << op.info->name.name << "\"}).";
  throw ReplayMismatch(text.str());
}

}  // namespace detail
}  // namespace retape
