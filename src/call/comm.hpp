// SPDX-License-Identifier: Apache-2.0
// The communicator behind the C API's handle.
#pragma once

#include "transport/transport.hpp"

#include <annulus/comm.h>

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace annulus {

// The most ranks of a local communicator and of an estimate.
inline constexpr std::int32_t max_ranks = 4096;

// One rank's end of a communicator. Its handle and the contexts that use it share it.
class CommEnd {
  public:
    explicit CommEnd(std::unique_ptr<Transport> transport)
        : transport_(std::move(transport)), link_(*transport_), size_(link_.size()), rank_(link_.rank()) {}

    // Valid also after destroy().
    int size() const { return size_; }
    int rank() const { return rank_; }

    // Throws in a process that was forked from the process that made the end.
    void check_process(const char *name) const;
    bool is_of_this_process() const { return process_ == getpid(); }

    // Valid until destroy() is called, or until the call that uses it then has ended.
    Transport &transport() const { return link_; }

    // Ends the transport. If a context is in a call with it, aborts it instead, and the call ends it.
    void destroy() noexcept;

  private:
    friend class CommUse;

    std::unique_ptr<Transport> transport_;
    Transport &link_; // *transport_
    const int size_, rank_;
    const pid_t process_ = getpid(); // only the process that made it can use it
    std::mutex mutex_;
    bool is_in_use_ = false, is_destroyed_ = false;
};

// Keeps an end in use. Throws if this process cannot use the end, it is destroyed, or another use is not over. Messages
// call the end `name`.
class CommUse {
  public:
    CommUse(std::shared_ptr<CommEnd> end, const char *name);
    ~CommUse();
    CommUse(const CommUse &) = delete;
    CommUse &operator=(const CommUse &) = delete;

    Transport &transport() const { return end_->transport(); }

  private:
    const std::shared_ptr<CommEnd> end_;
};

} // namespace annulus

struct annulus_comm {
    std::shared_ptr<annulus::CommEnd> end;
};
