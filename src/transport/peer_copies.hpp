// SPDX-License-Identifier: Apache-2.0
// Messages between processes with a GPU each, of one host, as copies from one another's memory, without kernels, which
// would wait for a multiprocessor while an engine's own take all of them.
//
// Each rank has an outbox on its device, some of it for each other rank, which the others' devices read. The sender's
// stream has messages written there and then writes their number to a signal; the receiver's stream waits for that
// number, copies the messages out of the outbox, and writes the number to a second signal, for which the sender's next
// messages wait. Signals lie in host memory that all processes share. Streams wait for them without a multiprocessor,
// and where a rank does not come a host can let its own streams go on.
//
// So a rank's host waits for no other: it gives its stream both ends of what it sends and receives.
#pragma once

#include "cuda/device/cuda_handle.hpp"
#include "transport/transport.hpp"

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace annulus {

class PeerCopies {
  public:
    // Collective: `bytes` from each rank, in rank order into `all`.
    using Gather = std::function<void(const void *mine, void *all, std::size_t bytes)>;

    // Of shared memory, which begins with zeros.
    static std::size_t signal_bytes(int ranks);

    // Collective, on the rank's device. `signals` is mapped by all ranks and outlives the object. Null on every rank
    // where the device of one cannot wait for signals, or two are of one process: getting memory on one device then
    // waits for the others, whose streams may wait for signals.
    static std::unique_ptr<PeerCopies> make(int rank, int ranks, void *signals, const Gather &gather);
    // No stream of this rank waits, and may_be_read() is over.
    ~PeerCopies();
    PeerCopies(const PeerCopies &) = delete;
    PeerCopies &operator=(const PeerCopies &) = delete;

    // Collective, on the rank's device: from now on there is room for so many bytes to each rank, as add_message()
    // counts them, or none where devices cannot have that or reach it. Asks `check` while it waits for ranks
    // that have yet to read. Returns whether there is more room than before.
    bool reserve(const std::vector<std::size_t> &bytes_to, const Gather &gather, const std::function<void()> &check);
    bool has_room(int from, int to) const { return rooms_[index_of(from, to)] > 0; }

    // Gives the stream what there is room for of a batch, on the rank's device, and has all of it written; the rest,
    // alike at both ends, is left in `rest`.
    void begin(const Batch &batch, cudaStream_t stream, Batch &rest);

    // Whether messages to or from a rank are on their way. Any thread, before release().
    bool has_outstanding(int peer) const;
    // Whether the process of a rank has ended. Any thread.
    bool has_ended(int peer) const;
    // Whether some rank that is still there has not read all that this one has sent.
    bool may_be_read() const;
    // Lets this rank's streams go on. What they receive then is no message, and what they have sent may be lost. Any
    // thread.
    void release() noexcept;

  private:
    struct Signal {
        alignas(64) std::atomic<std::uint32_t> count;
    };
    // Of one rank's messages to another.
    struct Signals {
        Signal written, read;
        Signal seen; // as `read`, for the sender's host: release() leaves it alone
    };
    // What one rank's device has of another's outbox.
    struct Peer {
        std::atomic<std::uint32_t> sent{0}, received{0}; // batches with messages to it and from it
        std::byte *outbox = nullptr;
        int process = -1;      // a descriptor of its process, or -1
        std::size_t bytes = 0; // of a batch that is being begun
    };

    PeerCopies(int rank, int ranks, void *signals);

    Signals &signals(int from, int to) const;
    std::size_t index_of(int from, int to) const {
        return static_cast<std::size_t>(from) * peers_.size() + static_cast<std::size_t>(to);
    }
    // In the sender's outbox.
    std::size_t first_byte(int from, int to) const;

    void await(const Signal &signal, std::uint32_t count, cudaStream_t stream) const;
    void write(const Signal &signal, std::uint32_t count, cudaStream_t stream) const;
    // Finds in `rest` those of `transfers` that there is no room for.
    void choose(const std::vector<Transfer> &transfers, bool are_sends, std::vector<Transfer> &rest);
    // Has a batch written, into the outbox where there is room.
    void write_sends(const Batch &batch, cudaStream_t stream);

    bool open_outboxes(const Gather &gather);
    void close_outboxes() noexcept;

    const int rank_;
    std::vector<Peer> peers_; // by rank
    Signals *const signals_;
    bool is_registered_ = false;
    decltype(cuStreamWaitValue32) *wait_value_ = nullptr;
    decltype(cuStreamWriteValue32) *write_value_ = nullptr;
    DeviceBytes outbox_;
    std::vector<std::size_t> rooms_;  // bytes, by sender and receiver; all ranks have the same
    std::vector<std::size_t> wanted_; // the same of a reserve()
    std::vector<Transfer> places_;    // of what a batch sends
    bool is_refused_ = false;         // some device cannot reach another's memory
};

} // namespace annulus
