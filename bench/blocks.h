// The six blocks of the bench, as python/retape/bench/blocks.py has them: the same ops in the same
// order, so the same numbers of bytes.
#pragma once

#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace retape::bench {

struct Size {
  int64_t layers = 8;
  at::ScalarType dtype = at::kFloat;
  int64_t d_model = 2048;
  int64_t d_ff = 8192;
  int64_t batch = 2;
  int64_t sequence = 2048;
};

// inner: what peers wrap. outer: the rest, with the block's input at hand.
class Block : public torch::nn::Module {
 public:
  explicit Block(const Size& size) : size_(size) {}
  virtual at::Tensor inner(const at::Tensor& x) = 0;
  virtual at::Tensor outer(const at::Tensor& h, const at::Tensor& x) = 0;
  at::Tensor forward(const at::Tensor& x) { return outer(inner(x), x); }

  virtual bool adds_its_input() const { return false; }

  // Whose scale is the scale of the output.
  at::Tensor last() const { return linears_.back()->weight; }

 protected:
  torch::nn::Linear linear(
      const std::string& name, int64_t inputs, int64_t outputs, at::ScalarType dtype) {
    torch::nn::Linear made(torch::nn::LinearOptions(inputs, outputs).bias(false));
    made->to(dtype);
    linears_.push_back(made);
    return register_module(name, made);
  }

  const Size size_;

 private:
  std::vector<torch::nn::Linear> linears_;
};

class Fp32Cast final : public Block {
 public:
  explicit Fp32Cast(const Size& size)
      : Block(size),
        linear_(linear("linear", size.d_model, size.d_model, at::kFloat)) {}
  at::Tensor inner(const at::Tensor& x) override { return x.to(at::kFloat); }
  at::Tensor outer(const at::Tensor& h, const at::Tensor&) override {
    return linear_(h).to(size_.dtype);
  }

 private:
  torch::nn::Linear linear_;
};

class UpProj : public Block {
 public:
  explicit UpProj(const Size& size)
      : Block(size),
        up_(linear("up", size.d_model, size.d_ff, size.dtype)),
        down_(linear("down", size.d_ff, size.d_model, size.dtype)) {}
  at::Tensor inner(const at::Tensor& x) override { return up_(x); }
  at::Tensor outer(const at::Tensor& h, const at::Tensor&) override { return down_(h); }

 protected:
  torch::nn::Linear up_, down_;
};

class SiluUp final : public UpProj {
 public:
  using UpProj::UpProj;
  at::Tensor inner(const at::Tensor& x) override { return at::silu(up_(x)); }
};

class SwiGlu final : public Block {
 public:
  explicit SwiGlu(const Size& size)
      : Block(size),
        w1_(linear("w1", size.d_model, size.d_ff, size.dtype)),
        w3_(linear("w3", size.d_model, size.d_ff, size.dtype)),
        w2_(linear("w2", size.d_ff, size.d_model, size.dtype)) {}
  at::Tensor inner(const at::Tensor& x) override {
    const auto gate = at::silu(w1_(x));  // first, as in Python; in one expression either may be
    return gate * w3_(x);
  }
  at::Tensor outer(const at::Tensor& h, const at::Tensor&) override { return w2_(h); }

 private:
  torch::nn::Linear w1_, w3_, w2_;
};

class RmsNorm final : public Block {
 public:
  explicit RmsNorm(const Size& size)
      : Block(size),
        linear_(linear("linear", size.d_model, size.d_model, size.dtype)) {
    weight_ = register_parameter("weight", torch::ones({size.d_model}, size.dtype));
  }
  at::Tensor inner(const at::Tensor& x) override {
    return at::rms_norm(x, {size_.d_model}, weight_);
  }
  at::Tensor outer(const at::Tensor& h, const at::Tensor& x) override { return linear_(h) + x; }
  bool adds_its_input() const override { return true; }

 private:
  torch::nn::Linear linear_;
  at::Tensor weight_;
};

class Fp32Softmax final : public Block {
 public:
  explicit Fp32Softmax(const Size& size)
      : Block(size),
        proj_(linear("proj", size.d_model, size.d_model, size.dtype)) {}
  at::Tensor inner(const at::Tensor& x) override { return at::softmax(x.to(at::kFloat), -1); }
  at::Tensor outer(const at::Tensor& h, const at::Tensor&) override {
    return proj_(h.to(size_.dtype));
  }

 private:
  torch::nn::Linear proj_;
};

using Stack = std::vector<std::shared_ptr<Block>>;

template <class Kind>
Stack stack_of(const Size& size) {
  Stack stack;
  for (int64_t i = 0; i < size.layers; ++i) {
    stack.push_back(std::make_shared<Kind>(size));
  }
  return stack;
}

inline at::Tensor deviation_of(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.to(at::kFloat).std().to(dtype);
}

// Unit deviation behind the last product of every block (of rms_norm, x is added to that): without,
// gradients through eight swiglu layers are exactly zero, and to compare those proves nothing.
inline void scale(const Stack& stack, at::Tensor x) {
  const at::NoGradGuard no_grad;
  for (const auto& block : stack) {
    auto weight = block->last();
    const auto y = block->forward(x);
    weight.div_(deviation_of(block->adds_its_input() ? y - x : y, weight.scalar_type()));
    x = block->forward(x);
    if (block->adds_its_input()) {
      x = x / deviation_of(x, x.scalar_type());
    }
  }
}

inline const std::map<std::string, Stack (*)(const Size&)>& all_blocks() {
  static const auto* all = new std::map<std::string, Stack (*)(const Size&)>{
      {"fp32_cast", &stack_of<Fp32Cast>},
      {"up_proj", &stack_of<UpProj>},
      {"silu_up", &stack_of<SiluUp>},
      {"swiglu", &stack_of<SwiGlu>},
      {"rms_norm", &stack_of<RmsNorm>},
      {"fp32_softmax", &stack_of<Fp32Softmax>},
  };
  return *all;
}

}  // namespace retape::bench
