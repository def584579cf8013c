// Texts in a store, read and decided without waiting there: a c10d::Store that waits hears no
// interrupt, and writes a warning when its time is over.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <optional>
#include <string>

namespace retape::dist::detail {

// None: it is not written. One round trip, where a store that is asked to get a key waits for it
// first.
inline std::optional<std::string> read(c10d::Store& store, const std::string& key) {
  static const std::string nothing = "not written";
  auto text = store.compareSet(key, nothing, nothing);  // what is there, else `nothing`
  return text == nothing ? std::nullopt : std::optional(std::move(text));
}

// Writes it unless it is there. What is there from then on.
inline std::string decide(c10d::Store& store, const std::string& key, const std::string& text) {
  return store.compareSet(key, "", text);
}

}  // namespace retape::dist::detail
