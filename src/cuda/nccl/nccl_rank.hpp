// SPDX-License-Identifier: Apache-2.0
// One rank's end of an NCCL communicator, and the thread that watches what the end gave to the GPU.
//
// Threads: the one that uses the transport, the ones that call abort(), and the watching thread, which lives as long as
// the object. One thread at a time calls NCCL. The first failure is kept. After it only the watching thread calls NCCL,
// to abort the communicator.
//
// Ownership: streams, events and memory belong to the object. An owned communicator ends with the object; a borrowed
// one stays its owner's. On failure an owned communicator is aborted, and a borrowed one if its owner has allowed it.
// If not, NCCL's kernels may wait until the owner aborts it. Nothing here waits for these kernels, and the memory that
// they use stays allocated.
#pragma once

#include "core/error.hpp"
#include "cuda/device/cuda_handle.hpp"
#include "cuda/nccl/nccl_library.hpp"
#include "cuda/nccl/peer_copies.hpp"
#include "transport/board.hpp"
#include "transport/deadline.hpp"
#include "transport/first_failure.hpp"
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
    // The owner of the communicator, and for a borrowed one whether it may be aborted.
    enum class Hold { owned, borrowed, borrowed_to_abort };

    // Takes ownership of an owned communicator only when nothing can throw any more.
    // If `only_nccl` is true on one rank, all ranks use NCCL alone.
    NcclRank(ncclComm_t comm, Hold hold, bool only_nccl);
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
    // How long closing waits for NCCL, and for work that other ranks hold up.
    static constexpr Seconds closing_time{2};

    // Work of the GPU between two events. Its timeout starts when the GPU reaches the first event.
    struct Work {
        Event begun = make_event(), ended = make_event();
        std::optional<Deadline> deadline;
    };

    // Runs a part of the public interface; a failure in it breaks the transport.
    template <class Part> void run(Part part);
    // Keeps the error if it is the first one. Ends the watching thread, which aborts the communicator if it may.
    void break_with(const Error &error) noexcept;
    [[noreturn]] void throw_late() const {
        throw Error(ANNULUS_ERROR_COMM, "another rank did not come within %g s", timeout_.load().count());
    }

    [[noreturn]] static void throw_left(int rank) {
        throw Error(ANNULUS_ERROR_COMM, "rank %d has left the communicator", rank);
    }

    // Locks the communicator for this thread. Throws if the transport is broken: aborting may take long.
    std::unique_lock<std::mutex> lock_comm();
    // Calls NCCL and waits until the GPU has been given the work.
    template <class Call> void call(Call part);
    // Waits for NCCL and then until ready() is true. Waits for other ranks for at most the timeout.
    template <class Ready> void await(Ready ready);

    // Functions that run inside run().
    void gather(const void *mine, void *all, std::size_t bytes);
    // Makes the board and the peer copies, if all ranks can have them and none of them has `only_nccl`.
    void look_for_board();
    void gather_on_board(const void *mine, void *all, std::size_t bytes);
    // Gathers on the device, by NCCL's all-gather.
    void gather_by_nccl(const void *mine, void *all, std::size_t bytes);
    // Makes room for the parts of all ranks.
    void reserve(std::size_t bytes);

    void send_by_nccl(const Batch &batch, cudaStream_t stream);
    void connect_by_nccl();
    // Waits for a short time for messages between ranks of one host. Returns false if some may still be on their way.
    bool drain() noexcept;

    // Hands work over to the watching thread.
    void watch(Work work);
    // Throws once the deadline has passed. While this rank's GPU is working, the deadline begins anew.
    void check_in_time(Deadline &deadline);
    // True if the GPU has not completed all of this rank's work.
    bool is_working();

    // Functions of the watching thread.
    void watch_all() noexcept;
    bool wait_for_work();
    // Throws if the oldest work is late, or if it needs a rank that has failed.
    void look_after_work();
    // Releases streams that wait for other ranks' signals, after these ranks have had time to see this rank's failure.
    void release_streams() noexcept;
    // Ends an intact communicator when no other thread is left. Waits for its last work for a short time.
    void close() noexcept;
    // True if kernels of NCCL may wait for another rank while nothing here can stop them.
    bool may_hang() noexcept;

    int size_ = 0, rank_ = 0, device_ = 0;
    const Hold hold_;
    const bool only_nccl_;
    std::atomic<Seconds> timeout_ = default_timeout;

    // The board exists if all ranks are on this host and none has `only_nccl`; the first all_gather() finds out. The
    // ranks of a host send without NCCL by peer copies.
    bool has_looked_for_board_ = false;
    std::unique_ptr<Board> board_;            // set while state_mutex_ is locked
    std::unique_ptr<PeerCopies> peer_copies_; // the same
    Batch rest_;                              // the part of a batch that goes over NCCL

    // For gather_by_nccl(): the parts of all ranks, on the host and on the device.
    Stream stream_;
    Event gathered_;
    PinnedBytes host_;
    DeviceBytes memory_;
    std::size_t capacity_ = 0;
    std::vector<std::int64_t> times_; // the times in the ranks' last parts

    std::mutex comm_mutex_; // held during all calls of NCCL
    ncclComm_t comm_;       // null once it is aborted

    // May be locked while comm_mutex_ is locked, not the other way round.
    std::mutex state_mutex_;
    std::condition_variable state_changed_;
    FirstFailure failure_; // kept while state_mutex_ is locked
    bool must_stop_ = false;
    std::deque<Work> works_; // oldest first, the order in which NCCL runs them

    std::thread watcher_; // last: it uses the other members
};

} // namespace annulus
