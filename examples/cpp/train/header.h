// The header of a safetensors file: JSON.
#pragma once

#include "error.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace train {

using Metadata = std::map<std::string, std::string>;

struct Entry {
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // in the data
};

struct Header {
  Metadata metadata;
  std::map<std::string, Entry> tensors;
};

inline Header read_header(const std::string& text) {
  try {
    Header header;
    const auto json = nlohmann::json::parse(text);  // outlives the items
    for (const auto& [name, value] : json.items()) {
      if (name == "__metadata__") {
        header.metadata = value.get<Metadata>();
        continue;
      }
      const auto offsets = value.at("data_offsets").get<std::vector<uint64_t>>();
      if (offsets.size() != 2 || offsets[0] > offsets[1]) {
        throw Refused("its header has no offsets of tensor " + name);
      }
      header.tensors[name] = {
          value.at("dtype").get<std::string>(),
          value.at("shape").get<std::vector<int64_t>>(),
          offsets[0],
          offsets[1]};
    }
    return header;
  } catch (const nlohmann::json::exception&) {
    throw Refused("its header is not that of a safetensors file");
  }
}

}  // namespace train
