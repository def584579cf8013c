// The program of README.md. The part between the marks and the README must stay the same text.

// readme: begin
#include <retape/retape.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  torch::nn::Sequential model(
      torch::nn::Linear(64, 256), torch::nn::GELU(), torch::nn::Linear(256, 64));
  auto x = torch::randn({32, 64});

  retape::Recompute scope(retape::Policy::cheap());  // any code, no closures, no annotations
  auto loss = model->forward(x).square().mean();
  scope.close();
  loss.backward();  // replays what it needs, bit for bit
  std::cout << scope.stats().ops_replayed << " ops replayed\n";

  auto y = retape::checkpoint([&](at::Tensor in) { return model->forward(in); }, x);
}
// readme: end
