// Layers: checkpointing that is switched on and off for a whole model.
//
//   struct BlockImpl : torch::nn::Module { ...; Tensor forward(Tensor x, Tensor mask); };
//   using Block = retape::Layer<BlockImpl>;     // in place of TORCH_MODULE(Block)
//
//   retape::enable(*model);                     // every Layer in it
//   retape::enable(*model, {}, [](const std::string& name, const torch::nn::Module&) {
//     return name != "layers.0";                // or those that a predicate chooses
//   });
//   retape::disable(*model);
//
// A Layer is its module: the same parameters under the same names, the same forward with the same
// arguments. Enabled, forward is a call of checkpoint; not enabled, it is the call itself.
#pragma once

#include <retape/checkpoint.h>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace retape {

struct LayerOptions {
  CheckpointOptions checkpoint;  // its name is set to the layer's, qualified
  bool in_eval = false;          // in evaluation mode too, where gradients are enabled
};

// What enable and disable see of a layer.
class RETAPE_API LayerSwitch {
 public:
  virtual ~LayerSwitch();
  void enable(LayerOptions options) { options_ = std::move(options); }
  void disable() { options_.reset(); }
  bool enabled() const { return options_.has_value(); }
  uint64_t calls() const { return calls_; }  // that were checkpointed

 protected:
  // Null: call plainly.
  const CheckpointOptions* checkpoint_now(bool training) {
    if (!options_ || !(training || options_->in_eval) || is_eager()) {
      return nullptr;
    }
    ++calls_;
    return &options_->checkpoint;
  }

 private:
  std::optional<LayerOptions> options_;
  uint64_t calls_ = 0;
};

template <typename Impl>
class LayerImpl : public Impl, public LayerSwitch {
 public:
  using Impl::Impl;

  template <typename... Args>
  auto forward(Args&&... args) {
    // By reference to the module, which outlives the graph it is part of.
    const auto call = [this](auto&&... given) {
      return Impl::forward(std::forward<decltype(given)>(given)...);
    };
    if (const auto* options = checkpoint_now(this->is_training())) {
      return checkpoint(*options, call, std::forward<Args>(args)...);
    }
    return call(std::forward<Args>(args)...);
  }
};

template <typename Impl>
class Layer : public torch::nn::ModuleHolder<LayerImpl<Impl>> {
 public:
  using torch::nn::ModuleHolder<LayerImpl<Impl>>::ModuleHolder;
};

using LayerPredicate = std::function<bool(const std::string& name, const torch::nn::Module& layer)>;

// Names of the layers that are now on, in order. UsageError if there is none: the model has no
// Layer in it, or the predicate chose none.
RETAPE_API std::vector<std::string> enable(
    torch::nn::Module& model,
    const LayerOptions& options = {},
    const LayerPredicate& choose = nullptr);

// All of them, whoever enabled them. Returns how many were on.
RETAPE_API size_t disable(torch::nn::Module& model);

}  // namespace retape
