// SPDX-License-Identifier: Apache-2.0
// The library's own threads leave the program's signals to the program's threads.
#pragma once

#include <pthread.h>

#include <csignal>
#include <initializer_list>

namespace annulus {

// Blocks the calling thread's signals as long as it lives, and for good those of threads that are started meanwhile;
// but not those that tell of a fault of the thread itself, which would end the process without its handler.
class BlockedSignals {
  public:
    BlockedSignals() {
        sigset_t blocked;
        sigfillset(&blocked);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT})
            sigdelset(&blocked, fault);
        pthread_sigmask(SIG_SETMASK, &blocked, &before_);
    }
    ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    BlockedSignals(const BlockedSignals &) = delete;
    BlockedSignals &operator=(const BlockedSignals &) = delete;

  private:
    sigset_t before_;
};

} // namespace annulus
