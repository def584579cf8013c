// NotEager: a function that runs again does as it did the first time, which was not under Eager,
// even if backward is. Otherwise the checkpoints in it would save other tensors than before.
#pragma once

namespace retape::detail {

class NotEager {
 public:
  NotEager();
  ~NotEager();
  NotEager(const NotEager&) = delete;
  NotEager& operator=(const NotEager&) = delete;

 private:
  int depth_;
};

}  // namespace retape::detail
