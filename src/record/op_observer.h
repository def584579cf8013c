// Watch: sees the ops of a function that may run twice, and what autograd saves meanwhile.
//
// Watches of a thread nest, in each other and in the scopes of replay; autograd's question for
// hooks goes to the innermost of all.
#pragma once

#include "tape/op_info.h"

#include <ATen/core/stack.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <atomic>
#include <memory>
#include <vector>

namespace retape::detail {

class Watch {
 public:
  // Of this thread, the innermost; null where there is none.
  static Watch* current();

  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  virtual ~Watch();

  virtual void before(const OpInfo& op, const torch::jit::Stack& stack) = 0;
  virtual void after(const OpInfo& op, const torch::jit::Stack& stack) = 0;
  virtual void between() = 0;  // a composite op has ended

  // Null: not interested, ask further out.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;

  // In a backward that it was not opened in: what happens there is not the function's.
  bool off() const;
  // Nothing was opened inside it that would rather be asked.
  bool innermost() const;

 protected:
  Watch();  // opens it, on this thread
  Watch* outer() const { return outer_; }

 private:
  // What the thread that opened it knows of it. Destroyed on another thread, it empties its place,
  // and its own thread forgets that when it next looks.
  struct Place {
    explicit Place(Watch* watch) : watch(watch) {}
    std::atomic<Watch*> watch;
  };
  static std::vector<std::shared_ptr<Place>>& of_this_thread();

  const std::shared_ptr<Place> place_;
  Watch* outer_;
  size_t scopes_outside_;  // of replay
  size_t hooks_outside_;   // of the user
  int graph_task_;
};

}  // namespace retape::detail
