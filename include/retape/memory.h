// MemoryMeter: exact bytes of tensor memory, from the moment it is opened.
//
//   retape::MemoryMeter meter;
//   loss = model->forward(batch);
//   loss.backward();
//   std::cout << meter.peak() << " bytes at most, " << meter.held() << " when backward began\n";
//
// CPU: every byte requested of the c10 allocator by any thread, counted from 0 at opening; memory
// that was there before is not counted, neither when it is freed. Not seen: scratch that BLAS
// libraries take outside c10, autograd nodes, Python objects.
// Devices with a caching allocator (CUDA): the same numbers, read from that allocator's statistics
// (requested bytes; opening resets its peak). No timeline there, and `held` is `current`.
// Meters nest and may be open on several threads; each has its own zero. Without an open meter
// nothing is installed. Opening and closing while other threads allocate is safe.
#pragma once

#include <retape/api.h>

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace retape {

enum class Phase : uint8_t { Forward, Backward, Replay };

// One allocation or free, in the order they happened.
struct MemoryEvent {
  int64_t bytes;       // negative when freed
  int64_t current;     // live bytes of the meter after it
  uint64_t id;         // an allocation and its free carry the same id
  Phase phase;         // what the thread was doing
  std::string op;      // "aten::addmm": the op that asked; empty where no op was running
  std::string region;  // name of the scope it was recorded in or is replayed for; empty elsewhere
  std::string shape;   // "float32 [8, 512]": of the tensor that it is for, if an op returned one
};

struct MeterOptions {
  bool timeline = false;  // record every event, with the op it was for (costs about 1 us per event)
  c10::Device device = c10::Device(c10::kCPU);
};

class RETAPE_API MemoryMeter {
 public:
  // UsageError for a device that this build of torch has no caching allocator for.
  explicit MemoryMeter(MeterOptions options = {});
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  int64_t current() const;  // live bytes that were allocated since opening
  int64_t peak() const;     // the most that `current` has been
  int64_t held() const;     // `current` when the last backward began; before any: `current`
  void reset_peak();        // peak = current, e.g. between forward and backward
  void close();             // stop counting; the numbers stay readable

  std::vector<MemoryEvent> timeline() const;  // empty unless asked for

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace retape
