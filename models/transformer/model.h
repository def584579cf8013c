// A decoder-only transformer, as it is written on LibTorch: pre-norm, attention written out,
// SwiGLU.
//
//   transformer::Config config;
//   config.stacking = models::replayed();             // or {}: plain
//   torch::manual_seed(0);                            // weights are torch's own initialisation
//   transformer::Model model(config);
//   model->forward(transformer::closed_form_ids(config)).loss.backward();
//
// Dropout draws from the default generator; nothing else is random, and a layer does nothing but
// compute: a method that calls layers again in backward, and puts the generator back, is right.
#pragma once

#include <transformer/ends.h>

#include <vector>

namespace transformer {

struct Output {
  Tensor loss;
  Tensor logits;  // [batch, tokens, vocabulary]
};

class ModelImpl : public torch::nn::Module {
 public:
  explicit ModelImpl(Config config);

  Output forward(const Tensor& ids);  // [batch, tokens + 1]

  const Config& config() const { return config_; }
  void set_stacking(models::Stacking stacking) { config_.stacking = std::move(stacking); }

 private:
  Config config_;
  Ends ends_ = nullptr;
  std::vector<Layer> layers_;
};
TORCH_MODULE(Model);

}  // namespace transformer
