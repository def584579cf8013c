// Faults: ways in which recompute could go wrong, each of which can be switched on, so that it can
// be shown that the checks notice. Built in only with RETAPE_FAULTS (CMake); without it `injected`
// is a constant and nothing of this is in the library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#ifdef RETAPE_FAULTS
#include <atomic>
#endif

namespace retape::detail {

enum class Fault : uint8_t {
  None,
  GeneratorNotRestored,
  WrongGenerator,
  PrivateGenerator,
  AutocastDropped,
  AutocastDtype,
  GradModeOff,
  SwappedTensors,
  StaleFrame,
  StopsEarly,
  StopsLate,
  StaleVersion,
  DataMutated,
  BatchNormTwice,
  OtherOp,
  Layout,
  DtypeWidened,
  OneUlp,
  NanPayload,
  SignOfZero,
  MissingArgument,
  DefaultDevice,
  ThreadRace,
  FreedEarly,
  Leak,
  SecondUnpack,
};

#ifdef RETAPE_FAULTS

extern std::atomic<Fault> fault_that_is_on;
extern std::atomic<uint64_t> hits_of_fault;

inline void hit() {  // it did something
  hits_of_fault.fetch_add(1, std::memory_order_relaxed);
}

inline bool injected(Fault fault) {
  return fault_that_is_on.load(std::memory_order_relaxed) == fault;
}

#else

constexpr bool injected(Fault) {
  return false;
}
inline void hit() {}

#endif

}  // namespace retape::detail
