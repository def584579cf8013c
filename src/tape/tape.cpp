#include "tape/tape.h"

namespace retape::detail {

struct Graveyard {
  bool locked = false;    // a TapeLock is held on this thread
  bool draining = false;  // further up the stack, ops are being taken down
  bool ended = false;     // the thread is ending, and graphs it held last die after this
  std::vector<c10::Storage> storages;
  std::vector<c10::intrusive_ptr<Op>> ops;
  ~Graveyard() { ended = true; }
};

namespace {

Graveyard& graveyard() {
  thread_local Graveyard instance;
  return instance;
}

}  // namespace

TapeLock::TapeLock(Tape& tape) : tape_(tape), yard_(graveyard()) {
  tape_.mutex.lock();
  yard_.locked = true;
}

TapeLock::~TapeLock() {
  yard_.locked = false;
  tape_.mutex.unlock();
  while (!yard_.ended && !yard_.storages.empty()) {
    // One at a time: a deleter may come back here, with a lock of its own.
    const auto storage = std::move(yard_.storages.back());
    yard_.storages.pop_back();
  }
}

void bury(c10::Storage&& storage) {
  auto& yard = graveyard();
  if (yard.locked && !yard.ended && storage) {
    yard.storages.push_back(std::move(storage));
  } else {
    c10::Storage(std::move(storage));
  }
}

void bury(c10::intrusive_ptr<Op>&& op) {
  auto& yard = graveyard();
  if (yard.ended) {
    c10::intrusive_ptr<Op>(std::move(op)).reset();
    return;
  }
  yard.ops.push_back(std::move(op));
  if (yard.draining) {
    return;
  }
  yard.draining = true;
  while (!yard.ops.empty()) {
    auto next = std::move(yard.ops.back());
    yard.ops.pop_back();
    next.reset();
  }
  yard.draining = false;
}

}  // namespace retape::detail
