// MemoryRegion: a name for what is allocated while it lives, in timelines of a MemoryMeter.
// Gradients of ops that ran in it have the name too, and so has what backward runs again of it.
//
//   retape::MemoryRegion region("layers.3");
//   x = layer->forward(x);
//
// A scope's own name (Recompute) goes before it. They nest; each on its thread.
#pragma once

#include <retape/api.h>

#include <string>

namespace retape {

class RETAPE_API MemoryRegion {
 public:
  explicit MemoryRegion(std::string name);
  ~MemoryRegion();
  MemoryRegion(const MemoryRegion&) = delete;
  MemoryRegion& operator=(const MemoryRegion&) = delete;

 private:
  const std::string name_;
  const std::string* const outer_;
};

}  // namespace retape
