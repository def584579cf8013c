#include <retape/dist/row_random.h>

#include <retape/error.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/PhiloxRNGEngine.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace retape::dist {

namespace {

uint64_t key_of(uint64_t seed, const std::string& name) {
  return XXH3_64bits_withSeed(name.data(), name.size(), seed);
}

}  // namespace

at::Tensor row_uniform(
    uint64_t seed,
    const std::string& name,
    RowRange rows,
    at::IntArrayRef sizes,
    at::ScalarType dtype) {
  if (rows.begin < 0 || rows.end < rows.begin) {
    throw UsageError(
        "[row_uniform] rows " + std::to_string(rows.begin) + " to " + std::to_string(rows.end) +
        ": expected a range of the global batch.");
  }
  std::vector<int64_t> shape{rows.size()};
  shape.insert(shape.end(), sizes.begin(), sizes.end());
  const auto drawn = at::empty(shape, at::kDouble);
  auto* next = drawn.mutable_data_ptr<double>();
  const int64_t each = rows.empty() ? 0 : drawn.numel() / rows.size();
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    at::Philox4_32 engine(key_of(seed, name), static_cast<uint64_t>(row));
    for (int64_t i = 0; i < each; ++i) {
      const uint64_t high = engine() >> 5;  // 27 bits and 26 bits
      const uint64_t low = engine() >> 6;
      *next++ = static_cast<double>(high << 26 | low) * 0x1p-53;
    }
  }
  return drawn.to(dtype);
}

at::Generator row_generator(uint64_t seed, const std::string& name, int64_t row) {
  const auto key = key_of(seed, name);
  return at::make_generator<at::CPUGeneratorImpl>(XXH3_64bits_withSeed(&row, sizeof(row), key));
}

}  // namespace retape::dist
