// SPDX-License-Identifier: Apache-2.0
// What stands behind the communicator handle, and who may use it.
#pragma once

#include "transport/transport.hpp"

#include <annulus/comm.h>

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace annulus {

// Of a local communicator, and of what is estimated: more than anybody has.
inline constexpr std::int32_t max_ranks = 4096;

} // namespace annulus

namespace annulus {

// One rank's end, which its handle and the contexts that were given it share.
class CommEnd {
  public:
    explicit CommEnd(std::unique_ptr<Transport> transport)
        : transport_(std::move(transport)), size_(transport_->size()), rank_(transport_->rank()) {}

    // Also of an end that is destroyed.
    int size() const { return size_; }
    int rank() const { return rank_; }

    // Throws in a process that was forked from the one that made the end.
    void check_process(const char *name) const;
    bool is_of_this_process() const { return process_ == getpid(); }

    // Until destroy() is called.
    Transport &transport() const { return *transport_; }

    // Ends the transport or, where a context is in a call with it, aborts it and lets the call end it.
    void destroy() noexcept;

  private:
    friend class CommUse;

    std::unique_ptr<Transport> transport_;
    const int size_, rank_;
    const pid_t process_ = getpid(); // the one that made it, and the only one that can use it
    std::mutex mutex_;
    bool is_in_use_ = false, is_destroyed_ = false;
};

// The one use of an end at a time. Throws where this process cannot use the end, it is destroyed, or another use is not
// over. `name` is what messages call it.
class CommUse {
  public:
    CommUse(std::shared_ptr<CommEnd> end, const char *name);
    ~CommUse();
    CommUse(const CommUse &) = delete;
    CommUse &operator=(const CommUse &) = delete;

    Transport &transport() const { return *end_->transport_; }

  private:
    const std::shared_ptr<CommEnd> end_;
};

} // namespace annulus

struct annulus_comm {
    std::shared_ptr<annulus::CommEnd> end;
};
