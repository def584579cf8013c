// The inside of a World.
#pragma once

#include <retape/dist/world.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace retape::dist {

struct World::Impl {
  int rank = 0;
  int size = 1;
  std::string address;                    // where Gloo listens
  c10::intrusive_ptr<c10d::Store> store;  // null: alone
  GroupOptions options;

  // A group that is being made, or is made, or could not be.
  struct Made {
    std::vector<int> ranks;
    std::shared_future<Group> group;
  };
  std::mutex mutex;
  std::map<std::string, Made> groups;

  Group make_group(const std::string& name, const std::vector<int>& ranks) const;
};

}  // namespace retape::dist
