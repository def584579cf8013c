// Token: what autograd holds in place of a saved tensor. Bound to a value that can be replayed, or,
// where that cannot be, to the tensor's storage itself.
#pragma once

#include "tape/tape.h"

#include <torch/csrc/autograd/saved_variable_hooks.h>

namespace retape::detail {

class Recorder;

// Called whenever autograd asks a token for its tensor. Null: nothing is.
using UnpackListener = void (*)();
void set_unpack_listener(UnpackListener listener);

class Token final : public torch::autograd::SavedVariableHooks, public Pooled<Token> {
 public:
  explicit Token(Recorder& recorder);
  ~Token() override;

  void call_pack_hook(const at::Tensor& tensor) override;
  at::Tensor call_unpack_hook() override;
  std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>> retrieve_unpack_hook_data()
      const override;

 private:
  friend class Recorder;

  void check_version() const;
  void let_go();  // of the value
  at::Tensor tensor_on(c10::Storage storage) const;

  c10::intrusive_ptr<Tape> tape_;

  // Exactly one of the three once bound; storage_ while it waits for its op to end.
  c10::intrusive_ptr<Value> value_;
  c10::Storage storage_;
  at::Tensor original_;

  View view_;
  c10::VariableVersion counter_;  // autograd does not check versions behind hooks: the token does
  uint32_t version_ = 0;
  int consumed_ = Value::kNoPass;  // pass in which it was last unpacked, if the graph is retained
  bool waiting_ = false;
  bool leaf_ = false;
  bool unpacked_ = false;  // before; where somebody compares
};

}  // namespace retape::detail
