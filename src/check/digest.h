// Digest: enough of a tensor to tell later whether another one is the same, bit for bit, and to
// show a number of each where it is not.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <string>

namespace retape::detail {

class Digest {
 public:
  Digest() = default;
  // `bits`: of the contents too. Those of tensors that are not plain CPU memory are left out.
  Digest(const at::Tensor& tensor, bool bits);

  bool operator==(const Digest& other) const;

  c10::Device device() const { return device_; }
  bool has_bits() const { return bits_; }
  uint64_t hash() const { return hash_; }  // of the bits

  // "float32 [2, 3]"
  std::string shape() const;

  // "element 5 is 0.25 and now 0.5": the first of the sampled elements that differs, else the
  // hashes.
  std::string difference(const Digest& now) const;

 private:
  static constexpr int kSamples = 8;
  using Element = std::array<char, 16>;  // its bytes, up to complex double

  std::string text_of(const Element& element) const;

  c10::SmallVector<int64_t, 4> sizes_;
  c10::ScalarType dtype_ = c10::ScalarType::Undefined;
  c10::Device device_ = c10::kCPU;
  bool bits_ = false;
  uint64_t hash_ = 0;
  std::array<int64_t, kSamples> where_{};
  std::array<Element, kSamples> samples_{};
};

}  // namespace retape::detail
