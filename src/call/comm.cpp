// SPDX-License-Identifier: Apache-2.0
#include "call/comm.hpp"

#include "core/error.hpp"

namespace annulus {

void CommEnd::check_process(const char *name) const {
    if (!is_of_this_process())
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "%s was made by process %d, which this one was forked from; here it can only be destroyed", name,
                    static_cast<int>(process_));
}

void CommEnd::destroy() noexcept {
    std::unique_ptr<Transport> ended; // ends after the lock is released, since that may take seconds
    const std::lock_guard lock(mutex_);
    is_destroyed_ = true;
    if (is_in_use_)
        transport_->abort();
    else
        ended = std::move(transport_);
}

CommUse::CommUse(std::shared_ptr<CommEnd> end, const char *name) : end_(std::move(end)) {
    end_->check_process(name);
    const std::lock_guard lock(end_->mutex_);
    if (end_->is_destroyed_)
        throw Error(ANNULUS_ERROR_ARGUMENT, "%s was destroyed; annulus_context_set_comm() gives it another, or none",
                    name);
    if (end_->is_in_use_)
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "%s is in a call; until that has returned, neither another context nor "
                    "annulus_comm_set_timeout() may use it",
                    name);
    end_->is_in_use_ = true;
}

CommUse::~CommUse() {
    std::unique_ptr<Transport> ended;
    const std::lock_guard lock(end_->mutex_);
    end_->is_in_use_ = false;
    if (end_->is_destroyed_)
        ended = std::move(end_->transport_);
}

} // namespace annulus
