#include "tape/fault.h"

#include "check/fault_hooks.h"

#include <retape/check.h>
#include <retape/error.h>

#include <algorithm>
#include <iterator>

namespace retape::detail {

#ifdef RETAPE_FAULTS

namespace {

struct Entry {
  Fault fault;
  FaultInfo info;
};

const std::vector<Entry>& entries() {
  static const auto* all = new std::vector<Entry>{
      {Fault::GeneratorNotRestored,
       {"rng-not-restored", "a random op draws new numbers in replay", "generator state"}},
      {Fault::WrongGenerator,
       {"wrong-generator",
        "an op with a generator of its own draws from the default one in replay",
        "wrong generator"}},
      {Fault::PrivateGenerator,
       {"private-generator",
        "a private generator is used as it is by then, not as it was",
        "private generator"}},
      {Fault::AutocastDropped,
       {"autocast-dropped", "the second run of a function goes without autocast", "autocast"}},
      {Fault::AutocastDtype,
       {"autocast-dtype", "the second run casts to another dtype", "autocast dtype"}},
      {Fault::GradModeOff,
       {"grad-mode-off", "the second run saves nothing, because gradients are off", "grad mode"}},
      {Fault::SwappedTensors,
       {"swapped-tensors", "backward gets another saved tensor of the same size", "swapped"}},
      {Fault::StaleFrame, {"stale-frame", "backward gets what an earlier step saved", "stale"}},
      {Fault::StopsEarly,
       {"stops-early",
        "the second run ends inside the op that fills the last tensor (RReLU's noise)",
        "early stop"}},
      {Fault::StopsLate,
       {"stops-late", "the second run goes on after everything is there", "late stop"}},
      {Fault::StaleVersion,
       {"stale-version", "replay reads a tensor as it was written later", "stale version"}},
      {Fault::DataMutated,
       {"data-mutated", "a weight is changed past autograd, as .data does", "changed unseen"}},
      {Fault::BatchNormTwice,
       {"batchnorm-twice", "replay moves running statistics once more", "written by replay"}},
      {Fault::OtherOp, {"other-op", "replay runs another op with the same shapes", "other op"}},
      {Fault::Layout, {"layout", "a saved tensor comes back with other strides", "layout"}},
      {Fault::DtypeWidened,
       {"dtype-widened", "a saved tensor comes back in a wider dtype", "dtype"}},
      {Fault::OneUlp,
       {"one-ulp",
        "one element of a replayed value is off by one unit in the last place",
        "one ulp"}},
      {Fault::NanPayload, {"nan-payload", "a NaN comes back with another payload", "NaN payload"}},
      {Fault::SignOfZero, {"sign-of-zero", "+0 comes back as -0", "sign of zero"}},
      {Fault::MissingArgument,
       {"missing-argument", "replay leaves an argument at its default", "argument"}},
      {Fault::DefaultDevice,
       {"default-device", "the second run makes tensors on another device", "default device"}},
      {Fault::ThreadRace,
       {"thread-race",
        "one user of a replayed value writes it while another still needs it",
        "overwritten"}},
      {Fault::FreedEarly,
       {"freed-early",
        "the memory of a replayed value is used for something else before its last use",
        "freed early"}},
      {Fault::Leak, {"leak", "a replayed value is held for ever", "leak"}},
      {Fault::SecondUnpack,
       {"second-unpack",
        "the second time that backward asks for a tensor it gets zeros",
        "second unpack"}},
  };
  return *all;
}

}  // namespace

const std::vector<FaultInfo>& faults() {
  static const auto* infos = [] {
    auto* list = new std::vector<FaultInfo>;
    std::transform(
        entries().begin(), entries().end(), std::back_inserter(*list), [](const Entry& entry) {
          return entry.info;
        });
    return list;
  }();
  return *infos;
}

void inject(const std::string& id) {
  const auto it = std::find_if(
      entries().begin(), entries().end(), [&](const Entry& entry) { return entry.info.id == id; });
  if (!id.empty() && it == entries().end()) {
    throw UsageError("[inject] no such fault: \"" + id + "\". Fix: retape verify --inject list.");
  }
  fault_that_is_on.store(id.empty() ? Fault::None : it->fault);
  hits_of_fault.store(0);
  forget_what_faults_put_aside();
}

bool is_injected(const std::string& id) {
  const auto on = fault_that_is_on.load();
  return std::any_of(entries().begin(), entries().end(), [&](const Entry& entry) {
    return entry.fault == on && entry.info.id == id;
  });
}

void fault_hit() {
  hit();
}

uint64_t fault_hits() {
  return hits_of_fault.load();
}

#else

const std::vector<FaultInfo>& faults() {
  static const auto* none = new std::vector<FaultInfo>;
  return *none;
}

void inject(const std::string& id) {
  if (!id.empty()) {
    throw UsageError(
        "[inject] this build has no faults to inject. Fix: build with RETAPE_FAULTS=ON "
        "(pip install . --no-build-isolation -C cmake.define.RETAPE_FAULTS=ON).");
  }
}

bool is_injected(const std::string&) {
  return false;
}

void fault_hit() {}

uint64_t fault_hits() {
  return 0;
}

#endif

}  // namespace retape::detail
