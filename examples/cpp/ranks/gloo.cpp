// Gloo's headers come from the system and are older than the Gloo inside libtorch. That is sound as
// long as nothing here derives from its classes, makes one of them or calls into them: they are
// only names in the declarations of c10d. Never link the system's libgloo: there would be two.
#include "gloo.h"

#include "polling_store.h"

#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace ranks {

void connect_gloo(
    c10d::ProcessGroup& group,
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::string& host,
    std::chrono::milliseconds timeout) {
  using c10d::ProcessGroupGloo;
  // What it waits for in the store has the store's timeout, not its own.
  const auto patient = c10::make_intrusive<PatientStore>(
      c10::make_intrusive<c10d::PrefixStore>("transport", store->clone()), timeout);
  const auto options = ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(ProcessGroupGloo::createDeviceForHostname(host));
  options->threads = 2;
  auto backend = c10::make_intrusive<ProcessGroupGloo>(
      patient, group.getRank(), group.getSize(), options);
  group.setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, backend);
  group.setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
}

}  // namespace ranks
