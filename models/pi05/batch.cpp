#include <pi05/batch.h>

namespace pi05 {

Tensor wave(int64_t numel, double amplitude, double step, double phase) {
  const auto i = torch::arange(numel, torch::kFloat64);
  return amplitude * torch::sin(step * (i + 1) + phase);
}

Batch closed_form_batch(const Config& config, double phase) {
  TORCH_CHECK(
      config.batch == 2 && config.action_tokens == 3,
      "[closed_form_batch] expected a batch of 2 and 3 action tokens, got ",
      config.batch, " and ", config.action_tokens, ". Fix: change other sizes, or fill a Batch of your own.");
  const auto filled = [](at::IntArrayRef sizes, double phase) {
    return wave(c10::multiply_integers(sizes), 1, 0.37, phase).view(sizes).to(torch::kFloat32);
  };
  const auto there = [&](int64_t tokens) { return torch::ones({config.batch, tokens}, torch::kBool); };

  Batch batch;
  batch.images = filled({config.batch, config.image_tokens, config.prefix_width}, phase);
  batch.images_there = there(config.image_tokens);
  const auto words = torch::arange(config.batch * config.language_tokens);
  batch.language = words.remainder(config.vocabulary).view({config.batch, -1});
  batch.language_there = there(config.language_tokens);
  batch.language_there[1][-1] = false;
  batch.indicator = torch::full({config.batch, config.indicator_tokens}, 9, torch::kInt64);
  batch.action_tokens = torch::tensor({1, 5, 0, 3, 2, 6}, torch::kInt64).view({2, 3});
  batch.action_tokens_there = there(config.action_tokens);
  batch.action_tokens_there[0][-1] = false;
  batch.actions = filled({config.batch, config.chunk, config.action_size}, phase + 1);
  batch.actions_there = there(config.chunk);
  batch.actions_there[1].slice(0, -2).fill_(false);
  batch.action_sizes = torch::tensor({config.action_size, config.action_size - 1}, torch::kInt64);
  batch.noise = filled({config.batch, config.chunk, config.action_size}, phase + 2);
  batch.time = torch::tensor({0.3, 0.8}, torch::kFloat32);
  return batch;
}

}  // namespace pi05
