// Trains nothing, proves something: one block, plain and checkpointed, the same gradients.
#include <retape/retape.h>

#include <torch/torch.h>

#include <iostream>

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential mlp(
      torch::nn::Linear(64, 256),
      torch::nn::GELU(),
      torch::nn::Dropout(0.1),
      torch::nn::Linear(256, 64));
  const auto x = torch::randn({32, 64});

  const auto gradients = [&](bool recompute) {
    mlp->zero_grad();
    torch::manual_seed(1);
    const auto y = recompute ? retape::checkpoint([&] { return mlp->forward(x); })
                             : mlp->forward(x);
    y.square().mean().backward();
    std::vector<torch::Tensor> grads;
    for (const auto& parameter : mlp->parameters()) {
      grads.push_back(parameter.grad().clone());
    }
    return grads;
  };

  const auto plain = gradients(false);
  const auto recomputed = gradients(true);
  bool same = true;
  for (size_t i = 0; i < plain.size(); ++i) {
    same = same && torch::equal(plain[i], recomputed[i]);
  }
  std::cout << "every gradient bit-identical: " << (same ? "yes" : "no") << "\n";
  return same ? 0 : 1;
}
