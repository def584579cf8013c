#include <pi05/model.h>

#include <cmath>
#include <numbers>

namespace pi05 {

namespace {

// Token i sees token j if j's block is not later than its own; a flag of 1 begins a block.
Tensor block_mask(const Tensor& there, const Tensor& flags) {
  const auto blocks = flags.unsqueeze(0).expand_as(there).cumsum(1);
  return (blocks.unsqueeze(1) <= blocks.unsqueeze(2)) & (there.unsqueeze(1) & there.unsqueeze(2));
}

Tensor positions_of(const Tensor& there) {
  return there.to(torch::kInt64).cumsum(1) - 1;
}

// Sines and cosines of the time, with periods from 4e-3 to 4.
Tensor time_waves(const Tensor& time, int64_t width) {
  const auto steps = torch::linspace(0, 1, width / 2, torch::kFloat64);
  const auto periods = 4e-3 * torch::pow(4.0 / 4e-3, steps);
  const auto angle = (2 * std::numbers::pi / periods) * time.unsqueeze(-1).to(torch::kFloat64);
  return torch::cat({angle.sin(), angle.cos()}, -1);
}

}  // namespace

ModelImpl::ModelImpl(Config config) : config_(std::move(config)) {
  // Names and order are those of golden.json: the order numbers the weights' waves.
  torch::nn::ModuleList prefix, suffix;
  for (int64_t i = 0; i < config_.layers; ++i) {
    layers_[0].emplace_back(
        config_, config_.prefix_width, config_.prefix_hidden, /*adaptive=*/false);
    layers_[1].emplace_back(
        config_, config_.suffix_width, config_.suffix_hidden, /*adaptive=*/true);
    prefix->push_back(layers_[0].back());
    suffix->push_back(layers_[1].back());
  }
  register_module("pt", prefix);
  register_module("et", suffix);
  norms_[0] = register_module(
      "pn", RmsNorm(config_.prefix_width, config_.norm_eps, /*adaptive=*/false));
  norms_[1] = register_module(
      "en", RmsNorm(config_.suffix_width, config_.norm_eps, /*adaptive=*/true));
  words_ = register_module("emb", torch::nn::Embedding(config_.vocabulary, config_.prefix_width));
  action_words_ = register_module(
      "da_emb",
      torch::nn::Embedding(
          torch::nn::EmbeddingOptions(config_.action_vocabulary, config_.prefix_width)
              .padding_idx(0)));
  token_head_ = register_module(
      "da_head", torch::nn::Linear(config_.prefix_width, config_.action_vocabulary));
  action_in_ = register_module("ain", torch::nn::Linear(config_.action_size, config_.suffix_width));
  action_out_ = register_module(
      "aout", torch::nn::Linear(config_.suffix_width, config_.action_size));
  time_in_ = register_module("t1", torch::nn::Linear(config_.suffix_width, config_.suffix_width));
  time_out_ = register_module("t2", torch::nn::Linear(config_.suffix_width, config_.suffix_width));

  torch::NoGradGuard guard;
  int64_t k = 0;
  for (auto& weight : parameters()) {
    const auto amplitude = weight.dim() == 1 ? 0.05
                                             : 1 / std::sqrt(static_cast<double>(weight.size(-1)));
    weight.copy_(
        wave(weight.numel(), amplitude, 0.7, 1.3 * static_cast<double>(++k)).view_as(weight));
  }
  action_words_->weight[0].zero_();
  to(config_.dtype);
}

Losses ModelImpl::forward(const Batch& batch, Cache& cache) {
  const auto prefix = run_prefix(batch, cache);
  if (config_.insulation) {
    insulate(cache);
  }
  const auto mse = flow_loss(batch, prefix, cache);
  return {mse, token_loss(batch, prefix)};
}

Prefix ModelImpl::run_prefix(const Batch& batch, Cache& cache) {
  const auto scale = std::sqrt(static_cast<double>(config_.prefix_width));
  const auto x = torch::cat(
      {batch.images,
       words_->forward(batch.language) * scale,
       words_->forward(batch.indicator) * scale,
       action_words_->forward(batch.action_tokens)},
      1);
  const auto indicator_there = torch::ones_like(batch.indicator, torch::kBool);
  const auto there = torch::cat(
      {batch.images_there, batch.language_there, indicator_there, batch.action_tokens_there}, 1);
  const auto cross_tokens = x.size(1) - config_.indicator_tokens - config_.action_tokens;
  const auto flags = (torch::arange(x.size(1)) >= cross_tokens).to(torch::kInt64);
  const auto out = run_towers({
      .layer = 0,
      .streams = {x.to(config_.dtype), Tensor()},
      .conditions = {},
      .mask = block_mask(there, flags),
      .positions = positions_of(there),
      .cache = &cache,
      .use = CacheUse::Write,
      .cross_tokens = cross_tokens,
  });
  return {out[0], there, cross_tokens};
}

Tensor ModelImpl::flow_loss(const Batch& batch, const Prefix& prefix, Cache& cache) {
  const auto time = batch.time.unsqueeze(1).expand({config_.batch, config_.chunk});
  const auto noisy = time.unsqueeze(-1) * batch.noise + (1 - time.unsqueeze(-1)) * batch.actions;
  const auto flow = batch.noise - batch.actions;
  const auto waves = time_waves(time, config_.suffix_width).to(config_.dtype);
  const auto condition = torch::silu(linear(time_out_, torch::silu(linear(time_in_, waves))));

  // All of the suffix is one block and sees all that is there of the cached prefix.
  const auto there = torch::ones({config_.batch, config_.chunk}, torch::kBool);
  const auto cached_there = prefix.there.slice(1, 0, prefix.cross_tokens);
  const auto flags = (torch::arange(config_.chunk) == 0).to(torch::kInt64);
  const auto cross = there.unsqueeze(2) & cached_there.unsqueeze(1);
  const auto out = run_towers({
      .layer = 0,
      .streams = {Tensor(), linear(action_in_, noisy.to(config_.dtype))},
      .conditions = {Tensor(), condition},
      .mask = torch::cat({cross, block_mask(there, flags)}, 2),
      .positions = cached_there.to(torch::kInt64).sum(1, /*keepdim=*/true) + positions_of(there),
      .cache = &cache,
      .use = CacheUse::Read,
      .cross_tokens = prefix.cross_tokens,
  });

  const auto predicted = linear(action_out_, out[1].slice(1, -config_.chunk)).to(torch::kFloat32);
  const auto numbers = torch::arange(config_.action_size).unsqueeze(0) <
      batch.action_sizes.unsqueeze(1);
  const auto counted = batch.actions_there.unsqueeze(2) & numbers.unsqueeze(1);
  return ((flow - predicted).pow(2) * counted).sum() / (counted.sum() + 1e-8);
}

Tensor ModelImpl::token_loss(const Batch& batch, const Prefix& prefix) {
  const auto before = prefix.out.slice(
      1, -config_.action_tokens - 1, -1);  // each token from the one before
  const auto logits = linear(token_head_, before).to(torch::kFloat32);
  const auto rows = logits.reshape({-1, config_.action_vocabulary});
  const auto ce = torch::cross_entropy_loss(
      rows, batch.action_tokens.reshape(-1), {}, at::Reduction::None);
  return (ce.view({config_.batch, -1}) * batch.action_tokens_there).mean();
}

Streams ModelImpl::run_towers(LayerCall call) {
  const size_t tower = call.streams[0].defined() ? 0 : 1;
  auto x = std::move(call.streams[tower]);
  std::vector<models::Layer> layers;
  for (call.layer = 0; call.layer < config_.layers; ++call.layer) {
    layers.push_back(layer_function(call, tower));
  }
  x = models::run_stack(config_.stacking, layers, std::move(x));
  Streams out;
  out[tower] = norms_[tower]->forward(x, call.conditions[tower]).first;
  return out;
}

models::Layer ModelImpl::layer_function(const LayerCall& call, size_t tower) {
  const LayerFunction run = [this, self = shared_from_this()](const LayerCall& c) {
    return run_layer(c);
  };
  return [run, checkpointing = config_.checkpointing, call, tower](const Tensor& x) {
    auto full = call;
    full.streams[tower] = x;
    return (checkpointing ? checkpointing(run, full) : run(full))[tower];
  };
}

Streams ModelImpl::run_layer(const LayerCall& call) {
  const auto weights = [&](size_t tower) { return layers_[tower][call.layer]; };
  std::vector<Tensor> qs, ks, vs;
  Streams gates;
  for (size_t tower = 0; tower < 2; ++tower) {
    if (const auto& x = call.streams[tower]; x.defined()) {
      auto layer = weights(tower);
      const auto [normed, gate] = layer->norm1->forward(x, call.conditions[tower]);
      gates[tower] = gate;
      const std::array<int64_t, 4> heads{x.size(0), x.size(1), -1, config_.head_size};
      qs.push_back(linear(layer->query, normed).view(heads));
      ks.push_back(linear(layer->key, normed).view(heads));
      vs.push_back(linear(layer->value, normed).view(heads));
    }
  }
  const auto q = rotary(torch::cat(qs, 1), call.positions, config_.rope_theta);
  auto k = rotary(torch::cat(ks, 1), call.positions, config_.rope_theta);
  auto v = torch::cat(vs, 1);
  if (call.use == CacheUse::Read) {
    const auto& entry = call.cache->at(call.layer);
    k = torch::cat({entry.key, k}, 1);
    v = torch::cat({entry.value, v}, 1);
  } else {
    (*call.cache)[call.layer] = {
        k.slice(1, 0, call.cross_tokens), v.slice(1, 0, call.cross_tokens)};
  }

  const auto attended = attend(config_, call.mask, q, k, v);
  Streams out;
  int64_t begin = 0;
  for (size_t tower = 0; tower < 2; ++tower) {
    if (const auto& x = call.streams[tower]; x.defined()) {
      auto layer = weights(tower);
      const auto part = attended.slice(1, begin, begin + x.size(1));
      begin += x.size(1);
      const auto middle = gated_residual(x, drop(linear(layer->output, part)), gates[tower]);
      const auto [normed, gate] = layer->norm2->forward(middle, call.conditions[tower]);
      out[tower] = gated_residual(middle, drop(layer->mlp(normed)), gate);
    }
  }
  return out;
}

Tensor ModelImpl::drop(const Tensor& x) {
  return torch::dropout(x, config_.dropout, is_training());
}

void insulate(Cache& cache) {
  for (auto& [layer, entry] : cache) {
    entry = {entry.key.detach(), entry.value.detach()};
  }
}

}  // namespace pi05
