// Bucket: tensors of one dtype and device that travel as one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace retape::dist::detail {

struct Entry {
  std::string name;
  at::Tensor tensor;
};

struct Bucket {
  std::vector<Entry> entries;
  int64_t bytes = 0;

  at::ScalarType dtype() const { return entries.front().tensor.scalar_type(); }
  // One contiguous copy of all.
  at::Tensor flatten(at::ScalarType as) const;
  // Each tensor gets its part.
  void copy_back(const at::Tensor& flat) const;
};

// In order; a bucket ends when it is full. Tensors of other dtypes or devices go to buckets of
// their own.
std::vector<Bucket> make_buckets(std::vector<Entry> entries, int64_t bucket_bytes);

// Names, dtypes and shapes, in order.
std::string text_of(const std::vector<Entry>& entries);

// "" or what is not finite when it has the dtype in which it travels: name, how many, the first
// one.
std::string not_finite(const std::vector<Entry>& entries, std::optional<at::ScalarType> wire);

}  // namespace retape::dist::detail
