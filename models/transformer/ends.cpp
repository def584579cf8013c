#include <transformer/ends.h>

namespace transformer {

EndsImpl::EndsImpl(const Config& config) {
  words_ = register_module("words", torch::nn::Embedding(config.vocabulary, config.width));
  places_ = register_module("places", torch::nn::Embedding(config.tokens, config.width));
  norm_ = register_module("norm", RmsNorm(config));
  head_ = register_module("head", unbiased(config.width, config.vocabulary));
}

Tensor EndsImpl::embed(const Tensor& ids) {
  return words_->forward(ids) + places_->forward(torch::arange(ids.size(1), ids.options()));
}

Tensor EndsImpl::logits(const Tensor& x) {
  return head_->forward(norm_->forward(x));
}

Tensor read(const Tensor& ids) {
  return ids.slice(1, 0, -1);
}

Tensor foretold(const Tensor& ids) {
  return ids.slice(1, 1);
}

Tensor next_token_loss(const Tensor& logits, const Tensor& ids) {
  return torch::cross_entropy_loss(
      logits.flatten(0, 1).to(torch::kFloat32), foretold(ids).flatten());
}

Tensor closed_form_ids(const Config& config) {
  const auto i = torch::arange(config.batch * (config.tokens + 1));
  return (i * i * 7 + i * 3).remainder(config.vocabulary).view({config.batch, -1});
}

}  // namespace transformer
