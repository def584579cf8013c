// Board: where the ranks of a process group leave word for one another. Keys of its store, with the
// prefix that the store itself would give them: whoever knows prefix and store can read it, members
// or not.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace retape::dist::detail {

struct Board {
  c10::intrusive_ptr<c10d::Store> store;  // without prefixes
  std::string prefix;

  std::string key(const std::string& what) const { return prefix + what; }
  Board in_life(int life) const {
    return life == 0 ? *this : Board{store, prefix + std::to_string(life) + "/"};
  }
  void write(const std::string& what, const std::string& text) const;
  bool has(const std::string& what) const;
  std::optional<std::string> read(const std::string& what) const;  // none: nobody has written it
  uint64_t number(const std::string& what) const;                  // 0: nobody has written it
  // Writes it unless somebody has; what it says from then on.
  std::string decide(const std::string& what, const std::string& text) const;
};

// The board of a process group, by its store: over the store's own connection...
Board as_board(const c10::intrusive_ptr<c10d::Store>& store);
// ...over a connection of its own, which one who waits keeps busy...
Board own_board(const c10::intrusive_ptr<c10d::Store>& store);
// ...or over the one that all groups of this process share, for questions that are answered at
// once.
Board shared_board(const c10::intrusive_ptr<c10d::Store>& store);

// The board of `other` over the connection of `board`, which is that of `store`; `board` itself
// where they do not lead to the same store.
Board beside(
    const Board& board,
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<c10d::Store>& other);

}  // namespace retape::dist::detail
