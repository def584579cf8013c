// Fit: how far a tensor is from its reference, and which factor explains most of it.
#pragma once

#include <ATen/core/Tensor.h>

namespace retape::dist::detail {

struct Fit {
  double error = 0;     // max|d - r| / max|r|
  double alpha = 1;     // <d, r> / <r, r>
  double residual = 0;  // ||d - alpha r|| / ||r||
  bool finite = true;   // all numbers of both
};

// Of the same sizes, `reference` not all zero. In float64.
Fit fit(const at::Tensor& reference, const at::Tensor& found);

// 0 for one without elements; not finite if an element is not.
double largest(const at::Tensor& tensor);

double euclidean(const at::Tensor& tensor);

// As float64 on the CPU, off the graph; complex numbers as pairs.
at::Tensor as_double(const at::Tensor& tensor);

}  // namespace retape::dist::detail
