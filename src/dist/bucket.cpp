#include "dist/bucket.h"

#include "dist/group_impl.h"

#include <ATen/Functions.h>

#include <map>
#include <sstream>
#include <tuple>
#include <utility>

namespace retape::dist::detail {

std::string text_of(const std::vector<Entry>& entries) {
  std::string text;
  for (const auto& entry : entries) {
    text += text.empty() ? "\"" : ", \"";
    text += entry.name + "\" " + shape_of(entry.tensor);
  }
  return text;
}

at::Tensor Bucket::flatten(at::ScalarType as) const {
  const auto& first = entries.front().tensor;
  int64_t elements = 0;
  for (const auto& entry : entries) {
    elements += entry.tensor.numel();
  }
  const auto flat = at::empty({elements}, first.options().dtype(as));
  int64_t begin = 0;
  for (const auto& entry : entries) {
    const auto& tensor = entry.tensor;
    flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()).copy_(tensor.detach());
    begin += tensor.numel();
  }
  return flat;
}

void Bucket::copy_back(const at::Tensor& flat) const {
  const at::NoGradGuard no_grad;
  int64_t begin = 0;
  for (const auto& entry : entries) {
    const auto& tensor = entry.tensor;
    tensor.copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

std::vector<Bucket> make_buckets(std::vector<Entry> entries, int64_t bucket_bytes) {
  std::vector<Bucket> buckets;
  std::map<std::tuple<at::ScalarType, c10::DeviceType, int>, size_t> open;
  for (auto& entry : entries) {
    const auto device = entry.tensor.device();
    const auto kind = std::make_tuple(
        entry.tensor.scalar_type(), device.type(), static_cast<int>(device.index()));
    const auto it = open.find(kind);
    if (it == open.end() || buckets[it->second].bytes >= bucket_bytes) {
      open[kind] = buckets.size();
      buckets.emplace_back();
    }
    auto& bucket = buckets[open[kind]];
    bucket.bytes += static_cast<int64_t>(entry.tensor.nbytes());
    bucket.entries.push_back(std::move(entry));
  }
  return buckets;
}

std::string not_finite(const std::vector<Entry>& entries, std::optional<at::ScalarType> wire) {
  std::ostringstream text;
  for (const auto& [name, tensor] : entries) {
    if (!tensor.is_floating_point() && !tensor.is_complex()) {
      continue;
    }
    const auto sent = on_wire(tensor.scalar_type(), wire);
    const auto bad = at::nonzero(at::isfinite(tensor.detach().to(sent)).logical_not());
    if (bad.size(0) == 0) {
      continue;
    }
    auto at = tensor.detach();
    std::string where;
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      const auto i = bad[0][d].item<int64_t>();
      where += d ? "," : "";
      where += std::to_string(i);
      at = at[i];
    }
    text << (text.tellp() > 0 ? "; " : "") << "\"" << name << "\" has " << bad.size(0)
         << " values that are not finite, the first at [" << where << "]";
    if (!at.is_complex()) {
      text << ": " << at.item<double>();
    }
    if (sent != tensor.scalar_type()) {
      text << " as " << c10::toString(sent);
    }
  }
  return text.str();
}

}  // namespace retape::dist::detail
