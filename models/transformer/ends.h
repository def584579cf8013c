// What a language model has before and after its layers, and the text that it is trained on.
#pragma once

#include <transformer/layer.h>

namespace transformer {

// Embeddings of tokens and of their places; a norm and a head. Not tied.
class EndsImpl : public torch::nn::Module {
 public:
  explicit EndsImpl(const Config& config);

  Tensor embed(const Tensor& ids);  // [batch, tokens] to [batch, tokens, width]
  Tensor logits(const Tensor& x);   // [batch, tokens, width] to [batch, tokens, vocabulary]

 private:
  torch::nn::Embedding words_ = nullptr, places_ = nullptr;
  RmsNorm norm_ = nullptr;
  torch::nn::Linear head_ = nullptr;
};
TORCH_MODULE(Ends);

// What is read and what is to be foretold, of ids [batch, tokens + 1].
Tensor read(const Tensor& ids);
Tensor foretold(const Tensor& ids);

// Cross entropy, in float32.
Tensor next_token_loss(const Tensor& logits, const Tensor& ids);

// [batch, tokens + 1], closed form: no random numbers.
Tensor closed_form_ids(const Config& config);

}  // namespace transformer
