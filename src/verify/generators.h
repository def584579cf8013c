// States of generators: the default ones of all devices in use, and private ones.
#pragma once

#include <retape/verify.h>

namespace retape::detail {

class GeneratorStates {
 public:
  static GeneratorStates now(const std::vector<at::Generator>& own = {});

  void restore() const;

  // The same, with other generators in the place of the private ones. UsageError: not as many.
  void restore(const std::vector<at::Generator>& own) const;

  // "cpu", "cuda:0", "generator 0".
  NamedTensors named() const;

 private:
  struct One {
    std::string name;
    at::Generator generator;
    at::Tensor state;
  };
  std::vector<One> default_, own_;
};

}  // namespace retape::detail
