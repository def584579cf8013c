// DryRun: ops allocate what they return and compute nothing, so that the memory of a step far too
// large to wait for is known in seconds.
//
//   retape::DryRun dry;
//   retape::MemoryMeter meter;
//   model->forward(batch).square().mean().backward();
//   std::cout << meter.peak() << " bytes, had it been computed\n";
//
// Ops on CPU tensors of floats whose result's shape follows from their arguments' shapes are not
// computed: what they return is garbage, or zeros if it is integers. The others run as ever, on
// that garbage where they read it; what is made of integers alone (indices, masks) is right.
// Counted are the tensors that ops return; scratch that a kernel takes inside is not. Code that
// looks at values may go astray. Threads: on the thread that made it, and in the backward passes
// that it starts.
#pragma once

#include <retape/api.h>

#include <cstdint>

namespace retape {

class RETAPE_API DryRun {
 public:
  DryRun();
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  static bool is_on();  // on this thread: there are no bits to compare

  // What a FlopCounter would have counted (flops.h).
  uint64_t flops() const;

 private:
  bool was_on_;
  uint64_t before_;
};

}  // namespace retape
