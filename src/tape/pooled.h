// Pooled: memory of small objects that are made and unmade once per op, kept per thread for the
// next one. A thousand of them freed at once would otherwise keep malloc busy merging chunks.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace retape::detail {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
template <typename T>
struct Pooled {};  // the sanitizers want to see every object's own life
#else
template <typename T>
class Pooled {
 public:
  static void* operator new(size_t size) {
    auto& pool = free_list();
    if (size != sizeof(T) || pool.blocks.empty()) {
      return ::operator new(size);
    }
    void* block = pool.blocks.back();
    pool.blocks.pop_back();
    return block;
  }

  static void operator delete(void* block, size_t size) {
    auto& pool = free_list();
    if (size != sizeof(T) || pool.ended || pool.blocks.size() >= kMost) {
      ::operator delete(block);
      return;
    }
    pool.blocks.push_back(block);
  }

 private:
  static constexpr size_t kMost = 4096;

  struct FreeList {
    std::vector<void*> blocks;
    bool ended = false;  // the thread is ending: objects may still die after its pool
    ~FreeList() {
      ended = true;
      for (void* block : blocks) {
        ::operator delete(block);
      }
      blocks.clear();
      blocks.shrink_to_fit();
    }
  };

  static FreeList& free_list() {
    thread_local FreeList list;
    return list;
  }
};
#endif

}  // namespace retape::detail
