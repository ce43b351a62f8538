// SPDX-License-Identifier: Apache-2.0
// How NCCL is called without blocking: in groups, and with looks at whether the communicator is ready again.
#pragma once

#include "transport/nccl_library.hpp"

#include <chrono>
#include <thread>

namespace annulus {

// Between the looks of a thread that waits: short at first, when what it waits for takes microseconds.
class NcclPause {
  public:
    void operator()() {
        if (spins_ > 0 && spins_--)
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(std::chrono::microseconds(20));
    }

  private:
    int spins_ = 200;
};

// NCCL calls that belong together. The group is ended whatever becomes of them.
class NcclGroup {
  public:
    NcclGroup() { check(nccl().group_start(), "ncclGroupStart"); }
    ~NcclGroup() {
        if (!ended_)
            nccl().group_end();
    }
    NcclGroup(const NcclGroup &) = delete;
    NcclGroup &operator=(const NcclGroup &) = delete;

    void add(ncclResult_t result, const char *what) {
        if (result_ != ncclSuccess || result == ncclInProgress)
            return;
        result_ = result;
        what_ = what;
    }
    // Throws what failed first.
    void end() {
        ended_ = true;
        add(nccl().group_end(), "ncclGroupEnd");
        check(result_, what_);
    }

  private:
    bool ended_ = false;
    ncclResult_t result_ = ncclSuccess;
    const char *what_ = "";
};

// Whether the communicator has done what it was asked for. Throws where that failed.
inline bool is_ready(ncclComm_t comm) {
    ncclResult_t state = ncclSuccess;
    check(nccl().comm_get_async_error(comm, &state), "ncclCommGetAsyncError");
    check(state, "NCCL's work");
    return state == ncclSuccess;
}

} // namespace annulus
