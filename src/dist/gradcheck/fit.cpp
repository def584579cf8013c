#include "dist/gradcheck/fit.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>

namespace retape::dist::detail {

at::Tensor as_double(const at::Tensor& tensor) {
  auto plain = tensor.layout() == at::kStrided ? tensor.detach() : tensor.detach().to_dense();
  if (plain.is_complex()) {
    plain = at::view_as_real(plain.resolve_conj());
  }
  return plain.to(at::kCPU).to(at::kDouble);
}

double largest(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : as_double(tensor).abs().max().item<double>();
}

double euclidean(const at::Tensor& tensor) {
  const auto most = largest(tensor);
  return most == 0 ? 0 : most * (as_double(tensor) / most).norm().item<double>();
}

Fit fit(const at::Tensor& reference, const at::Tensor& found) {
  const double scale = largest(reference);
  // Scaled first: squares of small gradients would be zero.
  const auto r = as_double(reference) / scale;
  const auto d = as_double(found) / scale;
  Fit result;
  result.finite = std::isfinite(scale) && std::isfinite(largest(d));
  if (!result.finite) {
    return result;
  }
  result.error = largest(d - r);
  const double square = (r * r).sum().item<double>();
  result.alpha = (d * r).sum().item<double>() / square;
  result.residual = euclidean(d - r * result.alpha) / std::sqrt(square);
  return result;
}

}  // namespace retape::dist::detail
