// SPDX-License-Identifier: Apache-2.0
// The part of NcclRank that looks after batches in streams: a thread of its own notices that a batch takes too long or
// that a rank has left, aborts the communicator, and releases streams that would wait for ever.
#include "cuda/nccl/nccl_rank.hpp"

#include "cuda/device/cuda_error.hpp"
#include "cuda/nccl/nccl_calls.hpp"

#include <chrono>
#include <utility>

namespace annulus {

namespace {

using namespace std::chrono_literals;

constexpr auto watch_interval = 50ms;

// As is_done(), but an error counts as the end: after an error nothing will be computed any more.
bool has_ended(const Event &event) noexcept {
    const bool is_pending = cudaEventQuery(event.get()) == cudaErrorNotReady;
    cudaGetLastError(); // clears it: later checks must not find it
    return !is_pending;
}

} // namespace

void NcclRank::watch(Work work) {
    {
        const std::lock_guard lock(state_mutex_);
        works_.push_back(std::move(work));
    }
    state_changed_.notify_all();
}

bool NcclRank::is_working() {
    const std::lock_guard lock(state_mutex_);
    return !works_.empty() && !is_done(works_.back().ended);
}

// The communicator is aborted here and nowhere else. NCCL returns from that only when it has freed everything, graphs
// that captured its work included. The thread that met the failure need not wait for it.
void NcclRank::watch_all() noexcept {
    const CurrentDevice current(device_);
    const BesideCaptures beside_captures;
    while (wait_for_work())
        try {
            look_after_work();
            const auto lock = lock_comm();
            is_ready(comm_);
        } catch (const Error &error) {
            break_with(error);
        }
    if (failure_)
        release_streams();
    if (!failure_ || hold_ == Hold::borrowed)
        return;
    const std::lock_guard lock(comm_mutex_);
    nccl().comm_abort(std::exchange(comm_, nullptr));
}

// Waits for work and then for one interval. Returns false if the thread must end.
bool NcclRank::wait_for_work() {
    std::unique_lock lock(state_mutex_);
    const auto is_over = [&] { return must_stop_ || static_cast<bool>(failure_); };
    state_changed_.wait(lock, [&] { return is_over() || !works_.empty(); });
    return !state_changed_.wait_for(lock, watch_interval, is_over);
}

void NcclRank::look_after_work() {
    const std::lock_guard lock(state_mutex_);
    while (!works_.empty() && is_done(works_.front().ended))
        works_.pop_front();
    if (works_.empty())
        return;
    Work &work = works_.front();
    if (!work.deadline && is_done(work.begun))
        work.deadline.emplace(timeout_);
    if (work.deadline && work.deadline->passed())
        throw_late();
    for (int rank = 0; peer_copies_ && rank < size_; ++rank)
        if ((board_->has_failed(rank) || peer_copies_->has_ended(rank)) && peer_copies_->has_outstanding(rank))
            throw_left(rank);
}

// Other ranks may overwrite released signals. Releases the streams again until none of them waits any more.
void NcclRank::release_streams() noexcept {
    const Deadline deadline(closing_time);
    auto pause = 2 * watch_interval;
    for (std::unique_lock lock(state_mutex_); peer_copies_ && !must_stop_ && !deadline.passed();
         pause = watch_interval) {
        state_changed_.wait_for(lock, pause, [&] { return must_stop_; });
        peer_copies_->release();
        if (works_.empty() || has_ended(works_.back().ended))
            return;
    }
}

bool NcclRank::drain() noexcept {
    if (!peer_copies_)
        return true;
    const Deadline deadline(closing_time);
    for (NcclPause pause;; pause()) {
        if (failure_)
            peer_copies_->release();
        const bool is_over = works_.empty() || has_ended(works_.back().ended);
        if (is_over && !peer_copies_->may_be_read())
            return true;
        if (deadline.passed())
            return false;
    }
}

} // namespace annulus
