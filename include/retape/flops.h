// FlopCounter: floating-point operations of a step that runs as ever.
//
//   retape::FlopCounter counter;
//   model->forward(batch).square().mean().backward();
//   std::cout << counter.flops() / 1e9 << " GFLOP\n";
//
// Counted are matrix products (mm, addmm, bmm, baddbmm), convolutions and fused attention, on the
// CPU, replayed ones too; two for each multiplication with its addition. Threads: on the thread
// that made it, and in the backward passes that it starts.
#pragma once

#include <retape/api.h>

#include <cstdint>

namespace retape {

class RETAPE_API FlopCounter {
 public:
  FlopCounter();
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

  uint64_t flops() const;

 private:
  uint64_t before_;
};

}  // namespace retape
