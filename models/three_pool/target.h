// The network that is to be explained. It is frozen; some of its linear layers, its sites, can be
// replaced by masked sums of components.
//
//   each layer:  x = x + running mean of x over positions
//                x = x + down(gelu(up(norm(x))))         up and down are sites
#pragma once

#include <three_pool/config.h>

#include <functional>

namespace three_pool {

struct Site {
  std::string name;  // "layer0.up"
  int64_t in, out, components;
};

std::vector<Site> sites_of(const Config& config);

class Target {
 public:
  Target(const Config& config, uint64_t seed, at::ScalarType dtype);

  // What is put in the place of a site: its index, its input [rows, positions, in] to its output.
  using Linear = std::function<Tensor(size_t site, const Tensor& x)>;

  // [rows, positions, width] to the same.
  Tensor forward(Tensor x, const Linear& linear) const;
  Tensor forward(const Tensor& x) const;  // with all sites as they are

  // Inputs of all sites, side by side: [rows, positions, sum of in].
  Tensor activations(const Tensor& x) const;

  Tensor plain(size_t site, const Tensor& x) const;
  const std::vector<Site>& sites() const { return sites_; }
  const Tensor& weight(size_t site) const { return weights_[site]; }  // [out, in]
  const Tensor& bias(size_t site) const { return biases_[site]; }
  int64_t weight_count(
      size_t begin = 0, size_t end = SIZE_MAX) const;  // of sites; by default of all

 private:
  std::vector<Site> sites_;
  std::vector<Tensor> weights_, biases_;
};

}  // namespace three_pool
