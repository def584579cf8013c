#include "dist/fingerprint_store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <map>
#include <mutex>

namespace retape::dist::detail {

namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// PrefixStore shows its prefix to those that derive from it.
struct Shown : c10d::PrefixStore {
  static const std::string& prefix(const c10d::PrefixStore& store) {
    return store.*(&Shown::prefix_);
  }
};

struct Address {
  StorePtr store;
  std::string prefix;
};

Address address_of(StorePtr store) {
  std::string prefix = "retape/";
  while (auto* wrapped = dynamic_cast<c10d::PrefixStore*>(store.get())) {
    prefix = Shown::prefix(*wrapped) + "/" + prefix;
    store = wrapped->getUnderlyingStore();
  }
  return {std::move(store), std::move(prefix)};
}

// The process's connections that all its groups share, by the store that they lead to. Whoever has
// one holds that store too, so that its address is not another's.
std::mutex mutex;
std::map<c10d::Store*, c10::weak_intrusive_ptr<c10d::Store>>& shared() {
  static auto& connections = *new std::map<c10d::Store*, c10::weak_intrusive_ptr<c10d::Store>>();
  return connections;
}

}  // namespace

void Board::write(const std::string& what, const std::string& text) const {
  store->set(key(what), text);
}

bool Board::has(const std::string& what) const {
  return store->check({key(what)});
}

// One message there and back: a store that is told to get a key waits for it first, and asks three
// times for that.
std::optional<std::string> Board::read(const std::string& what) const {
  static const std::string nothing = "nobody has written this";
  auto text = store->compareSet(
      key(what), nothing, nothing);  // what is there, and `nothing` where nothing is
  return text == nothing ? std::nullopt : std::optional(std::move(text));
}

uint64_t Board::number(const std::string& what) const {
  const auto text = read(what);
  return text ? std::stoull(*text) : 0;
}

std::string Board::decide(const std::string& what, const std::string& text) const {
  return store->compareSet(key(what), "", text);
}

Board as_board(const StorePtr& store) {
  auto [base, prefix] = address_of(store);
  return {std::move(base), std::move(prefix)};
}

Board own_board(const StorePtr& store) {
  auto [base, prefix] = address_of(store);
  return {base->clone(), std::move(prefix)};
}

Board shared_board(const StorePtr& store) {
  auto [base, prefix] = address_of(store);
  const std::lock_guard guard(mutex);
  for (auto it = shared().begin(); it != shared().end();) {
    it = it->second.expired() ? shared().erase(it) : std::next(it);
  }
  const auto known = shared().find(base.get());
  auto connection = known == shared().end() ? StorePtr() : known->second.lock();
  if (!connection) {
    connection = base->clone();
    shared().insert_or_assign(base.get(), c10::weak_intrusive_ptr<c10d::Store>(connection));
  }
  return {std::move(connection), std::move(prefix)};
}

Board beside(const Board& board, const StorePtr& store, const StorePtr& other) {
  auto [base, prefix] = address_of(other);
  return base == address_of(store).store ? Board{board.store, std::move(prefix)} : board;
}

}  // namespace retape::dist::detail
