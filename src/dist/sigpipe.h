// Who writes to the socket of a rank that has ended gets SIGPIPE, which ends the process unless
// somebody has decided otherwise (Python does). While this lives the calling thread has it blocked,
// and threads that it starts inherit that for good.
#pragma once

#include <signal.h>

namespace retape::dist::detail {

class SigpipeBlocked {
 public:
  SigpipeBlocked() {
    sigset_t pipe;
    ::sigemptyset(&pipe);
    ::sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, &before_);
  }
  ~SigpipeBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SigpipeBlocked(const SigpipeBlocked&) = delete;
  SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace retape::dist::detail
