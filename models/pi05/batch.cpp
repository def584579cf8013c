#include <pi05/batch.h>

namespace pi05 {

namespace {

constexpr int64_t kIndicator = 9;  // a word

}  // namespace

Tensor wave(int64_t numel, double amplitude, double step, double phase) {
  const auto i = torch::arange(numel, torch::kFloat64);
  return amplitude * torch::sin(step * (i + 1) + phase);
}

Batch closed_form_batch(const Config& config, double phase) {
  TORCH_CHECK(
      config.vocabulary > kIndicator && config.action_vocabulary > 6,
      "[closed_form_batch] expected vocabularies of at least ",
      kIndicator + 1,
      " words and 7 actions, got ",
      config.vocabulary,
      " and ",
      config.action_vocabulary,
      ". Fix: larger ones, or fill a Batch of your own.");
  const auto filled = [](at::IntArrayRef sizes, double phase) {
    return wave(c10::multiply_integers(sizes), 1, 0.37, phase).view(sizes).to(torch::kFloat32);
  };
  // As many as asked for, beginning again at the end; and every second sample.
  const auto again = [](const Tensor& few, int64_t many) {
    return few.index_select(0, torch::arange(many).remainder(few.size(0)));
  };
  const auto odd = [](const Tensor& rows) { return rows.slice(0, 1, rows.size(0), 2); };
  const auto there = [&](int64_t tokens) {
    return torch::ones({config.batch, tokens}, torch::kBool);
  };

  Batch batch;
  batch.images = filled({config.batch, config.image_tokens, config.prefix_width}, phase);
  batch.images_there = there(config.image_tokens);
  const auto words = torch::arange(config.batch * config.language_tokens);
  batch.language = words.remainder(config.vocabulary).view({config.batch, -1});
  batch.language_there = there(config.language_tokens);
  odd(batch.language_there).select(1, -1).fill_(false);
  batch.indicator = torch::full({config.batch, config.indicator_tokens}, kIndicator, torch::kInt64);
  const auto tokens = torch::tensor({1, 5, 0, 3, 2, 6}, torch::kInt64);
  batch.action_tokens = again(tokens, config.batch * config.action_tokens).view({config.batch, -1});
  batch.action_tokens_there = there(config.action_tokens);
  batch.action_tokens_there[0][-1] = false;
  batch.actions = filled({config.batch, config.chunk, config.action_size}, phase + 1);
  batch.actions_there = there(config.chunk);
  odd(batch.actions_there).slice(1, -2).fill_(false);
  batch.action_sizes = again(
      torch::tensor({config.action_size, config.action_size - 1}, torch::kInt64), config.batch);
  batch.noise = filled({config.batch, config.chunk, config.action_size}, phase + 2);
  batch.time = again(torch::tensor({0.3, 0.8}, torch::kFloat32), config.batch);
  return batch;
}

}  // namespace pi05
