// Manifest: what a rank has of an outcome, without the bytes of its tensors.
#pragma once

#include <retape/dist/gradcheck.h>

#include <map>
#include <string>
#include <vector>

namespace retape::dist::detail {

enum class Part : uint8_t { Gradient, Parameter };
using Numbers = std::map<std::string, double>;

// A tensor that some rank names.
struct Listed {
  Part part = Part::Gradient;
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes = {};
  std::string digest = "";  // empty: it has none there

  bool none() const { return digest.empty(); }
  bool is(const Listed& other) const { return part == other.part && name == other.name; }
  bool same_bits(const Listed& other) const {
    return dtype == other.dtype && sizes == other.sizes && digest == other.digest;
  }
  int64_t bytes() const {
    int64_t count = static_cast<int64_t>(c10::elementSize(dtype));
    for (const auto size : sizes) {
      count *= size;
    }
    return count;
  }
};

struct Manifest {
  bool ran = false;  // the step was called there: the rank is in the topology
  std::vector<Listed> tensors = {};
  Numbers norms = {}, losses = {};
};

// The tensors in the order in which `manifest` lists them: dense, on the CPU, off the graph.
std::vector<at::Tensor> list(const Outcome& outcome, Manifest& manifest);

}  // namespace retape::dist::detail
