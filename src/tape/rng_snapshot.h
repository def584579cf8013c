// Draw: the state of the generator that a random op drew from, as it was before the op.
#pragma once

#include "tape/op_info.h"

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <memory>
#include <mutex>

namespace retape::detail {

class Draw {
 public:
  // Takes the state of the generator `op` will use: its argument, else the device's default. Null
  // on the meta device, which draws nothing.
  static std::unique_ptr<Draw> before(const OpInfo& op, c10::ArrayRef<c10::IValue> args);
  static at::Generator generator_of(const OpInfo& op, c10::ArrayRef<c10::IValue> args);
  static std::unique_ptr<Draw> of(at::Generator source);

  const at::Generator& source() const { return source_; }

  // Puts the recorded state into its generator; returns the one that was there.
  at::Tensor rewind() const;
  void restore(const at::Tensor& later) const;

  // The op did draw. Evaluation-mode attention carries the tag of a random op and draws nothing.
  bool moved() const;

  // A generator in the recorded state, for an op that takes one.
  at::Generator fresh() const;

  // Puts the recorded state into the default generator for one op that takes none, and puts the
  // later state back. One such op at a time in the process, so that states do not mix.
  class Rewind {
   public:
    explicit Rewind(const Draw& draw);
    ~Rewind();
    Rewind(const Rewind&) = delete;
    Rewind& operator=(const Rewind&) = delete;

   private:
    const Draw& draw_;
    const std::unique_lock<std::mutex>
        lock_;  // taken before, and given back after, anything that can throw
    at::Tensor later_;
  };

 private:
  Draw(at::Generator source, at::Generator state);
  at::Generator source_;
  at::Generator state_;
};

}  // namespace retape::detail
