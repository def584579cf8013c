// Files as the system has them: written whole, and synced to the disk.
#pragma once

#include "error.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

namespace train {

// A file that is closed whatever happens.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags)
      : path_(path),
        fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (fd_ < 0) {
      refuse_errno("cannot open " + path_);
    }
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  void write(const void* data, size_t bytes) {
    const auto* at = static_cast<const char*>(data);
    while (bytes > 0) {
      const auto written = ::write(fd_, at, bytes);
      if (written < 0 && errno == EINTR) {
        continue;
      }
      if (written <= 0) {
        refuse_errno("cannot write " + path_);
      }
      at += written;
      bytes -= written;
    }
  }

  void sync() {
    if (::fsync(fd_) != 0) {
      refuse_errno("cannot write " + path_);
    }
  }

  int fd() const { return fd_; }

 private:
  std::string path_;
  int fd_;
};

}  // namespace train
