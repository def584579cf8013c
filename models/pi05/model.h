// pi05: two towers and a cache between them, after the vision-language-action model of that name.
//
//   pi05::Config config;
//   config.checkpointing = pi05::replayed();         // or {}: plain
//   pi05::Model model(config);
//   pi05::Cache cache;
//   auto losses = model->forward(pi05::closed_form_batch(config), cache);
//   (losses.mse + losses.ce).backward();
//
// A training step runs the towers one after the other. The prefix (images, language, discrete
// actions) fills the cache, layer by layer; the suffix (noisy actions) attends to it. Discrete
// actions give a cross entropy from the prefix, the flow of the noisy actions an MSE from the
// suffix. Without insulation the MSE reaches the prefix through the cache.
//
// One tower runs at a time, so a layer of a stacking is a function of that tower's stream. It
// writes or reads the caller's cache; one that is called again in backward writes it again, or
// reads what is in it by then, and the cache has to be there still.
//
// Dropout draws from the default generator; nothing else is random. Weights are closed form
// (golden.json), and none of them is left with a gradient of zero.
#pragma once

#include <pi05/batch.h>
#include <pi05/layer.h>

namespace pi05 {

struct Losses {
  Tensor mse;
  Tensor ce;
};

// What the first pass leaves for the second, and for its own loss.
struct Prefix {
  Tensor out;            // [batch, tokens, prefix width]
  Tensor there;          // bool [batch, tokens]
  int64_t cross_tokens;  // without indicator and discrete actions: what the suffix may see
};

class ModelImpl : public torch::nn::Module {
 public:
  explicit ModelImpl(Config config);

  // run_prefix, insulate if the config says so, flow_loss, token_loss. The cache is the caller's:
  // an empty one for each forward, or one that is used again and overwritten.
  Losses forward(const Batch& batch, Cache& cache);

  // The parts of a step, for a caller that does something to the cache in between.
  Prefix run_prefix(const Batch& batch, Cache& cache);
  Tensor flow_loss(const Batch& batch, const Prefix& prefix, Cache& cache);
  Tensor token_loss(const Batch& batch, const Prefix& prefix);

  const Config& config() const { return config_; }
  void set_stacking(models::Stacking stacking) { config_.stacking = std::move(stacking); }

 private:
  Streams run_towers(LayerCall call);
  models::Layer layer_function(const LayerCall& call, size_t tower);
  Streams run_layer(const LayerCall& call);
  Tensor drop(const Tensor& x);

  Config config_;
  std::array<std::vector<TowerLayer>, 2> layers_;
  std::array<RmsNorm, 2> norms_{nullptr, nullptr};
  torch::nn::Embedding words_ = nullptr, action_words_ = nullptr;
  torch::nn::Linear token_head_ = nullptr;
  torch::nn::Linear action_in_ = nullptr, action_out_ = nullptr;
  torch::nn::Linear time_in_ = nullptr, time_out_ = nullptr;
};
TORCH_MODULE(Model);

// Cuts the cache off the prefix's graph: every entry is replaced by its detached self.
void insulate(Cache& cache);

}  // namespace pi05
