// SPDX-License-Identifier: Apache-2.0
// The library's own threads leave the program's signals to the program's threads.
#pragma once

#include <pthread.h>

#include <csignal>
#include <initializer_list>

namespace annulus {

// As long as an object of this class lives, it blocks the signals of the thread that made it. A thread that is started
// meanwhile keeps them blocked. Signals of a thread's own faults, such as SIGSEGV, are not blocked: the system would
// end the process without calling the program's handler for them.
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
