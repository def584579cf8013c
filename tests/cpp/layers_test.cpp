#include "support.h"

namespace retape::testing {
namespace {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}

  Tensor forward(const Tensor& x, double scale = 1) {
    ++runs;
    return x + down(torch::dropout(torch::gelu(up(x)), 0.1, is_training())) * scale;
  }

  torch::nn::Linear up, down;
  int runs = 0;
};
using Block = Layer<BlockImpl>;

struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    for (int i = 0; i < 3; ++i) {
      layers->push_back(Block(8));
    }
    register_module("layers", layers);
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers) {
      x = layer->as<LayerImpl<BlockImpl>>()->forward(x, 0.5);
    }
    return x;
  }
  torch::nn::ModuleList layers;
};
TORCH_MODULE(Model);

Model made() {
  torch::manual_seed(1);
  return Model();
}

std::vector<Tensor> gradients(Model& model) {
  torch::manual_seed(2);
  const auto x = leaf({4, 8});
  model->zero_grad();
  model->forward(x).square().sum().backward();
  std::vector<Tensor> found{x.grad()};
  for (const auto& p : model->parameters()) {
    found.push_back(p.grad().clone());
  }
  return found;
}

int runs(Model& model, int i) {
  return model->layers[i]->as<LayerImpl<BlockImpl>>()->runs;
}

TEST(Layers, EnabledModelHasTheGradientsOfThePlainOne) {
  auto plain = made(), ours = made();
  EXPECT_EQ(enable(*ours), (std::vector<std::string>{"layers.0", "layers.1", "layers.2"}));
  const auto expected = gradients(plain);
  for (const auto method : {Method::Replay, Method::Rerun}) {
    LayerOptions options;
    options.checkpoint.method = method;
    enable(*ours, options);
    const int before = runs(ours, 0);
    const auto found = gradients(ours);
    EXPECT_EQ(runs(ours, 0) - before, method == Method::Replay ? 1 : 2);
    ASSERT_EQ(expected.size(), found.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(same_bits(expected[i], found[i])) << i;
    }
  }
}

TEST(Layers, EnabledModelHoldsLayerInputsOnly) {
  auto model = made();
  const auto x = leaf({1024, 8});
  enable(*model);
  MemoryMeter meter;
  const auto y = model->forward(x);
  EXPECT_EQ(meter.current(), 3 * 1024 * 8 * 4);  // two inputs and y
}

TEST(Layers, ParametersKeepTheirNames) {
  auto model = made();
  EXPECT_TRUE(model->named_parameters().contains("layers.1.up.weight"));
}

TEST(Layers, APredicateChooses) {
  auto model = made();
  const auto chosen = enable(*model, {}, [](const std::string& name, const torch::nn::Module&) {
    return name == "layers.1";
  });
  EXPECT_EQ(chosen, std::vector<std::string>{"layers.1"});
  EXPECT_EQ(disable(*model), 1u);
  EXPECT_EQ(disable(*model), 0u);
}

TEST(Layers, EvaluationModeIsPlainUnlessAsked) {
  for (const bool asked : {false, true}) {
    auto model = made();
    LayerOptions options;
    options.in_eval = asked;
    enable(*model, options);
    model->eval();
    model->forward(leaf({2, 8}));
    EXPECT_EQ(model->layers[0]->as<LayerImpl<BlockImpl>>()->calls(), asked ? 1u : 0u);
  }
}

TEST(Layers, NothingToEnableIsAnError) {
  torch::nn::Linear linear(2, 2);
  EXPECT_THROW(enable(*linear), UsageError);
  auto model = made();
  EXPECT_THROW(
      enable(*model, {}, [](const std::string&, const torch::nn::Module&) { return false; }),
      UsageError);
}

}  // namespace
}  // namespace retape::testing
