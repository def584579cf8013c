// Versions: the version counters through which a storage has been seen, and where each stood.
//
// Views share one counter. `.data` and set_ give another tensor on the same storage a counter of
// its own, so a write through either of them moves only one.
#pragma once

#include <c10/core/TensorImpl.h>

#include <cstring>
#include <memory>
#include <vector>

namespace retape::detail {

// VariableVersion does not say which counter it refers to; it is one pointer.
inline bool same_counter(const c10::VariableVersion& a, const c10::VariableVersion& b) {
  static_assert(sizeof(c10::VariableVersion) == sizeof(void*));
  return std::memcmp(static_cast<const void*>(&a), static_cast<const void*>(&b), sizeof(void*)) ==
      0;
}

class Versions {
 public:
  struct Seen {
    c10::VariableVersion counter;
    uint32_t version = 0;
    bool moved() const { return counter.enabled() && counter.current_version() != version; }
  };

  bool empty() const { return !first_.counter.enabled(); }
  const Seen& first() const { return first_; }

  // From its current version on, unless it is watched already. True: it is not the only one.
  bool watch(const c10::VariableVersion& counter) {
    if (!counter.enabled() || same_counter(counter, first_.counter)) {
      return false;
    }
    if (empty()) {
      first_ = {counter, counter.current_version()};
      return false;
    }
    if (!others_) {
      others_ = std::make_unique<std::vector<Seen>>();
    }
    for (const auto& other : *others_) {
      if (same_counter(counter, other.counter)) {
        return false;
      }
    }
    others_->push_back({counter, counter.current_version()});
    return true;
  }

  // From its current version on, in any case.
  void watch_anew(const c10::VariableVersion& counter) {
    watch(counter);
    if (same_counter(counter, first_.counter)) {
      first_.version = counter.current_version();
    }
    if (others_) {
      for (auto& other : *others_) {
        if (same_counter(counter, other.counter)) {
          other.version = counter.current_version();
        }
      }
    }
  }

  bool moved() const {
    if (first_.moved()) {
      return true;
    }
    if (others_) {
      for (const auto& other : *others_) {
        if (other.moved()) {
          return true;
        }
      }
    }
    return false;
  }

  // A counter that stands lower than it was seen has been put back
  // (_unsafe_preserve_version_counter), and nothing was written since: the recorder sees writes.
  // From now on it counts from there.
  void rebase() {
    const auto lower = [](Seen& seen) {
      if (seen.moved() && seen.counter.current_version() < seen.version) {
        seen.version = seen.counter.current_version();
      }
    };
    lower(first_);
    if (others_) {
      for (auto& other : *others_) {
        lower(other);
      }
    }
  }

  void clear() {
    first_ = Seen();
    others_.reset();
  }

 private:
  Seen first_;
  std::unique_ptr<std::vector<Seen>> others_;  // null: none, as nearly always
};

}  // namespace retape::detail
