// SPDX-License-Identifier: Apache-2.0
// One rank's end of an NCCL communicator, and the thread that watches what the end gave to the GPU.
//
// Threads: the one that uses the transport, those that call abort(), and the watching thread, which lives as long as
// the object. One of them at a time calls NCCL. The first failure that any of them meets is kept; after it nobody calls
// NCCL but the watching thread, to abort the communicator.
//
// Ownership: streams, events and memory are the object's own. An owned communicator ends with the object; a borrowed
// one stays its owner's. On failure an owned one is aborted, and a borrowed one where its owner has allowed it. Where
// he has not, NCCL's kernels may wait until he does it himself; nothing here waits for them, and what they use stays.
#pragma once

#include "core/error.hpp"
#include "cuda/device/cuda_handle.hpp"
#include "transport/board.hpp"
#include "transport/deadline.hpp"
#include "transport/first_failure.hpp"
#include "transport/nccl_library.hpp"
#include "transport/peer_copies.hpp"
#include "transport/transport.hpp"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace annulus {

class NcclRank final : public Transport {
  public:
    // Whose the communicator is.
    enum class Hold { owned, borrowed, borrowed_to_abort };

    // Takes an owned communicator over once nothing can throw any more.
    NcclRank(ncclComm_t comm, Hold hold);
    ~NcclRank() override;

    int size() const override { return size_; }
    int rank() const override { return rank_; }
    void check_device(annulus_device device, int index) const override;
    void set_timeout(Seconds timeout) override { timeout_ = timeout; }

    void all_gather(const void *mine, void *all, std::size_t bytes) override;
    bool can_gather(Device &device, void *stream) const override { return !is_capturing(device, stream); }
    void reserve(const std::vector<std::size_t> &bytes_to) override;

    void begin(const Batch &batch, Device &device, void *stream) override;
    void finish(const Batch &batch, Device &device, void *stream) override;

    void abort() noexcept override { break_with(Error(ANNULUS_ERROR_COMM, "aborted by annulus_comm_abort")); }
    std::optional<Error> failure() const override { return failure_.get(); }

  private:
    // What the GPU was given between two events. The clock starts when it comes to it.
    struct Work {
        Event begun = make_event(), ended = make_event();
        std::optional<Deadline> deadline;
    };

    // Runs a part of the public interface; a failure in it breaks the transport.
    template <class Part> void run(Part part);
    // Keeps the first error and ends the watching thread, which aborts the communicator where it may.
    void break_with(const Error &error) noexcept;
    [[noreturn]] void throw_late() const {
        throw Error(ANNULUS_ERROR_COMM, "another rank did not come within %g s", timeout_.load().count());
    }

    [[noreturn]] static void throw_left(int rank) {
        throw Error(ANNULUS_ERROR_COMM, "rank %d has left the communicator", rank);
    }

    // The communicator for this thread alone. Throws where the transport is broken: aborting may take long.
    std::unique_lock<std::mutex> lock_comm();
    // Calls NCCL and waits until that has reached the GPU.
    template <class Call> void call(Call part);
    // Waits for NCCL and then until ready(), but no longer than the timeout for other ranks.
    template <class Ready> void await(Ready ready);

    // While the transport runs a part of its interface.
    void gather(const void *mine, void *all, std::size_t bytes);
    void look_for_board();
    void gather_on_board(const void *mine, void *all, std::size_t bytes);
    // By NCCL's own, on the device.
    void gather_by_nccl(const void *mine, void *all, std::size_t bytes);
    // Room for what all ranks give.
    void reserve(std::size_t bytes);

    void send_by_nccl(const Batch &batch, cudaStream_t stream);
    void connect_by_nccl();
    // Waits for messages between ranks of one host that are still on their way, but not long. False where some may be.
    bool drain() noexcept;

    // Hands over to the watching thread.
    void watch(Work work);
    // Throws once the deadline has passed, which begins anew while this rank itself is at work.
    void check_in_time(Deadline &deadline);
    // Whether the GPU has not come to the end of what it was given.
    bool is_working();

    // The watching thread.
    void watch_all() noexcept;
    bool wait_for_work();
    // Throws where the oldest work is late, or a rank has failed that the work needs.
    void look_after_work();
    // Lets streams go on that wait for other ranks' signals, once these ranks have seen that this one has failed.
    void release_streams() noexcept;
    // Ends a whole communicator, once there is no other thread; waits for its last work, but not long.
    void close() noexcept;
    // Whether kernels of NCCL may wait for another rank with nobody here to stop them.
    bool may_hang() noexcept;

    int size_ = 0, rank_ = 0, device_ = 0;
    const Hold hold_;
    std::atomic<Seconds> timeout_ = default_timeout;

    // The board, where all ranks are on this host, which the first all_gather() finds out; and what goes between them
    // without NCCL.
    bool has_looked_for_board_ = false;
    std::unique_ptr<Board> board_;            // set while state_mutex_ is locked
    std::unique_ptr<PeerCopies> peer_copies_; // the same
    Batch rest_;                              // of a batch, which goes over NCCL

    // For gather_by_nccl(): what all ranks give, on the host and on the device.
    Stream stream_;
    Event gathered_;
    PinnedBytes host_;
    DeviceBytes memory_;
    std::size_t capacity_ = 0;
    std::vector<std::int64_t> times_; // that the ranks' last parts carried

    std::mutex comm_mutex_; // around all calls of NCCL
    ncclComm_t comm_;       // null once it is aborted

    // May be locked while comm_mutex_ is, not the other way round.
    std::mutex state_mutex_;
    std::condition_variable state_changed_;
    FirstFailure failure_; // kept while the mutex is locked
    bool stop_ = false;
    std::deque<Work> works_; // oldest first, which is the order in which NCCL does them

    std::thread watcher_; // last: it uses the rest
};

} // namespace annulus
