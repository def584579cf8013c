// The inside of a World.
#pragma once

#include <retape/dist/world.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace retape::dist {

struct World::Impl {
  int rank = 0;
  int size = 1;
  std::string host;                       // where the store and Gloo listen
  c10::intrusive_ptr<c10d::Store> store;  // null: alone
  GroupOptions options;

  std::mutex mutex;
  std::map<std::string, Group> groups;

  Group make_group(const std::string& name, const std::vector<int>& ranks) const;
};

}  // namespace retape::dist
