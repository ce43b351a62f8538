// SPDX-License-Identifier: Apache-2.0
// Messages between processes of one host that have a GPU each, as copies from one another's memory. No kernels are
// used: they would wait for a multiprocessor while an engine's kernels occupy all of them.
//
// Each rank has an outbox on its device, with a part for each other rank. The other ranks' devices read it. The
// sender's stream writes messages into the outbox and then writes their number to a signal. The receiver's stream waits
// for that number, copies the messages out of the outbox, and writes the number to a second signal. The sender's next
// messages wait for the second signal. Signals are in host memory that all processes share. Streams wait for them
// without a multiprocessor. If a rank fails to come, a host can release its own streams.
//
// A rank's host therefore waits for no other rank: it gives its stream the sends as well as the receives.
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
    // Gathers `bytes` from each rank into `all`, in rank order. Collective.
    using Gather = std::function<void(const void *mine, void *all, std::size_t bytes)>;

    // Bytes of the shared memory that PeerCopies::make() needs. The memory must be zero at first.
    static std::size_t signal_bytes(int ranks);

    // Collective, on the rank's device. `signals` is mapped by all ranks and outlives the object. Returns null on every
    // rank if a device cannot wait for signals, or if two ranks are in one process. In one process, allocating memory
    // on one device waits for the other devices, whose streams may wait for signals.
    static std::unique_ptr<PeerCopies> make(int rank, int ranks, void *signals, const Gather &gather);
    // Requires that no stream of this rank waits, and that may_be_read() is false.
    ~PeerCopies();
    PeerCopies(const PeerCopies &) = delete;
    PeerCopies &operator=(const PeerCopies &) = delete;

    // Collective, on the rank's device. Makes room for bytes_to[i] bytes to each rank i, as add_message() counts them.
    // It makes none if devices cannot allocate or reach that memory. Calls `check` while it waits for ranks that have
    // not read yet. Returns true if there is more room than before.
    bool reserve(const std::vector<std::size_t> &bytes_to, const Gather &gather, const std::function<void()> &check);
    bool has_room(int from, int to) const { return room_bytes_[index_of(from, to)] > 0; }

    // Gives the stream the transfers of a batch that have room, on the rank's device, and lets the batch write all of
    // its messages. Puts the transfers without room into `rest`; both ends agree which ones these are.
    void begin(const Batch &batch, cudaStream_t stream, Batch &rest);

    // True if messages to or from a rank are on their way. Any thread may call it, before release().
    bool has_outstanding(int peer) const;
    // True if the process of a rank has ended. Any thread may call it.
    bool has_ended(int peer) const;
    // True if a rank whose process still runs has not read all messages of this rank.
    bool may_be_read() const;
    // Releases the streams of this rank that wait. The data that they receive then is invalid, and messages that they
    // have sent may be lost. Any thread may call it.
    void release() noexcept;

  private:
    struct Signal {
        alignas(64) std::atomic<std::uint32_t> count;
    };
    // The signals of one rank's messages to another.
    struct Signals {
        Signal written, read;
        Signal seen; // as `read`, but for the sender's host: release() does not change it
    };
    // What this rank knows of another rank, and its mapping of that rank's outbox.
    struct Peer {
        std::atomic<std::uint32_t> sent{0}, received{0}; // number of batches with messages to and from that rank
        std::byte *outbox = nullptr;
        int process = -1;      // pidfd of its process, or -1
        std::size_t bytes = 0; // of the batch that is being begun
    };

    PeerCopies(int rank, int ranks, void *signals);

    Signals &signals(int from, int to) const;
    std::size_t index_of(int from, int to) const {
        return static_cast<std::size_t>(from) * peers_.size() + static_cast<std::size_t>(to);
    }
    // Returns the offset of the messages from one rank to another in the sender's outbox.
    std::size_t first_byte(int from, int to) const;

    void await(const Signal &signal, std::uint32_t count, cudaStream_t stream) const;
    void write(const Signal &signal, std::uint32_t count, cudaStream_t stream) const;
    // Puts the `transfers` without room into `rest`.
    void choose(const std::vector<Transfer> &transfers, bool are_sends, std::vector<Transfer> &rest);
    // Lets a batch write its messages, into the outbox if there is room.
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
    std::vector<std::size_t> room_bytes_;   // bytes, by sender and receiver; the same on all ranks
    std::vector<std::size_t> wanted_bytes_; // the same, as asked for in reserve()
    std::vector<Transfer> places_;          // where a batch writes its sends
    bool is_refused_ = false;               // some device cannot reach the memory of another
};

} // namespace annulus
