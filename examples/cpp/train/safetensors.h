// Files in the safetensors format: 8 bytes with the length of the header (little-endian), the
// header as JSON, the tensors.
//
//   train::write_safetensors("run.safetensors", {{"weight", weight}}, {{"step", "3"}});
//   train::SafetensorsFile file("run.safetensors");   // refuses what is not whole
//   file.read("weight", weight);                      // into the memory that is there
#pragma once

#include "error.h"
#include "file.h"
#include "header.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace train {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

inline std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "F32";
    case at::kByte:
      return "U8";
    default:
      throw Refused(std::string("cannot write tensors of ") + c10::toString(dtype));
  }
}

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path) : file_(path, std::ios::binary) {
    if (!file_) {
      refuse_errno("cannot be read");
    }
    if (!std::filesystem::is_regular_file(path)) {
      throw Refused("it is no file");
    }
    const uint64_t size = std::filesystem::file_size(path);
    unsigned char length[8];
    if (size < sizeof(length) || !file_.read(reinterpret_cast<char*>(length), sizeof(length))) {
      throw Refused("it is too short for a safetensors file");
    }
    uint64_t header_bytes = 0;
    for (int i = 7; i >= 0; --i) {
      header_bytes = header_bytes << 8 | length[i];
    }
    if (header_bytes > kMostHeader) {
      throw Refused("it does not begin as a safetensors file does");
    }
    if (header_bytes > size - sizeof(length)) {
      throw Refused("it ends within its header");
    }
    std::string header(header_bytes, '\0');
    file_.read(header.data(), static_cast<std::streamsize>(header_bytes));
    auto read = read_header(header);
    metadata = std::move(read.metadata);
    tensors = std::move(read.tensors);
    data_ = sizeof(length) + header_bytes;
    uint64_t end = 0;
    for (const auto& [name, entry] : tensors) {
      end = std::max(end, entry.end);
    }
    if (data_ + end != size) {
      throw Refused(
          "expected " + std::to_string(data_ + end) + " bytes, got " + std::to_string(size));
    }
  }

  void read(const std::string& name, at::Tensor into) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      throw Refused("there is no tensor " + name + " in it");
    }
    const auto& entry = found->second;
    if (entry.dtype != dtype_name(into.scalar_type()) ||
        into.sizes() != at::IntArrayRef(entry.shape) || entry.end - entry.begin != into.nbytes()) {
      throw Refused("tensor " + name + " has another type or shape");
    }
    file_.seekg(static_cast<std::streamoff>(data_ + entry.begin));
    if (!file_.read(
            static_cast<char*>(into.mutable_data_ptr()),
            static_cast<std::streamsize>(into.nbytes()))) {
      throw Refused("tensor " + name + " cannot be read");
    }
  }

  Metadata metadata;
  std::map<std::string, Entry> tensors;

 private:
  static constexpr uint64_t kMostHeader = 100'000'000;  // as in the safetensors library
  std::ifstream file_;
  uint64_t data_ = 0;
};

// Where a file is written before it has its name.
inline std::string beside_of(const std::string& path) {
  return path + ".tmp";
}

// At every moment `path` is what it was before or what it is after, on the disk too: written beside
// it, synced, renamed, and the folder synced. Tensors are contiguous and are not copied. `reached`
// is told how far it is: "half-written", "before-rename", "after-rename".
inline void write_safetensors(
    const std::string& path,
    const NamedTensors& tensors,
    const Metadata& metadata,
    const std::function<void(const char*)>& reached = [](const char*) {}) {
  nlohmann::json json{{"__metadata__", metadata}};
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto end = offset + tensor.nbytes();
    json[name] = {
        {"dtype", dtype_name(tensor.scalar_type())},
        {"shape", tensor.sizes().vec()},
        {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string header = json.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');  // tensors begin at a multiple of 8
  unsigned char length[8];
  for (int i = 0; i < 8; ++i) {
    length[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  }

  const auto beside = beside_of(path);
  {
    Descriptor file(beside, O_WRONLY | O_CREAT | O_TRUNC);
    file.write(length, sizeof(length));
    file.write(header.data(), header.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto& [name, tensor] = tensors[i];
      TORCH_CHECK(tensor.is_contiguous(), name, " is not contiguous");
      if (i == tensors.size() / 2) {
        reached("half-written");
      }
      file.write(tensor.const_data_ptr(), tensor.nbytes());
    }
    file.sync();
  }
  reached("before-rename");
  if (std::rename(beside.c_str(), path.c_str()) != 0) {
    refuse_errno("cannot rename " + beside);
  }
  reached("after-rename");
  const auto folder = std::filesystem::path(path).parent_path().string();
  Descriptor(folder.empty() ? "." : folder, O_RDONLY | O_DIRECTORY).sync();
}

}  // namespace train
