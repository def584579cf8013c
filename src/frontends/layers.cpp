#include <retape/layers.h>

namespace retape {

LayerSwitch::~LayerSwitch() = default;

namespace {

template <typename Visit>
void each_layer(torch::nn::Module& model, Visit visit) {
  for (const auto& item : model.named_modules("", /*include_self=*/true)) {
    if (auto* layer = dynamic_cast<LayerSwitch*>(item.value().get())) {
      visit(item.key(), *item.value(), *layer);
    }
  }
}

}  // namespace

std::vector<std::string> enable(
    torch::nn::Module& model, const LayerOptions& options, const LayerPredicate& choose) {
  std::vector<std::string> chosen;
  size_t seen = 0;
  each_layer(model, [&](const std::string& name, torch::nn::Module& module, LayerSwitch& layer) {
    ++seen;
    if (choose && !choose(name, module)) {
      return;
    }
    auto own = options;
    own.checkpoint.name = name;
    layer.enable(std::move(own));
    chosen.push_back(name);
  });
  if (!chosen.empty()) {
    return chosen;
  }
  const std::string who = "[enable] " + model.name() + ": ";
  if (seen == 0) {
    throw UsageError(
        who +
        "no layer can be checkpointed: expected a retape::Layer among its modules, got none. "
        "Fix: using Block = retape::Layer<BlockImpl> in place of TORCH_MODULE(Block).");
  }
  throw UsageError(
      who + "nothing would be recomputed: the predicate chose none of " + std::to_string(seen) +
      " layers. Fix: compare it with the names in model.named_modules().");
}

size_t disable(torch::nn::Module& model) {
  size_t count = 0;
  each_layer(model, [&](const std::string&, torch::nn::Module&, LayerSwitch& layer) {
    count += layer.enabled() ? 1 : 0;
    layer.disable();
  });
  return count;
}

}  // namespace retape
