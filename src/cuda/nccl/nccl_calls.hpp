// SPDX-License-Identifier: Apache-2.0
// Calls NCCL without blocking: in groups, and with tests whether the communicator is ready again.
#pragma once

#include "cuda/nccl/nccl_library.hpp"

#include <chrono>
#include <thread>

namespace annulus {

// The pause between two tests of a thread that waits. It does not sleep at first, since most waits take microseconds.
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

// A group of NCCL calls. The group is ended even if a call fails.
class NcclGroup {
  public:
    NcclGroup() { check(nccl().group_start(), "ncclGroupStart"); }
    ~NcclGroup() {
        if (!has_ended_)
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
    // Throws the first failure of the group.
    void end() {
        has_ended_ = true;
        add(nccl().group_end(), "ncclGroupEnd");
        check(result_, what_);
    }

  private:
    bool has_ended_ = false;
    ncclResult_t result_ = ncclSuccess;
    const char *what_ = "";
};

// True if the communicator has completed its operations. Throws if one failed.
inline bool is_ready(ncclComm_t comm) {
    ncclResult_t state = ncclSuccess;
    check(nccl().comm_get_async_error(comm, &state), "ncclCommGetAsyncError");
    check(state, "NCCL's work");
    return state == ncclSuccess;
}

} // namespace annulus
