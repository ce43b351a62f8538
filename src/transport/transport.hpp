// SPDX-License-Identifier: Apache-2.0
// The interface of a transport: host messages that all ranks see, and transfers from one rank's memory to another's.
#pragma once

#include "core/error.hpp"
#include "engine/device.hpp"

#include <annulus/context.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

namespace annulus {

// One end of a message between two ranks. Messages between two ranks arrive in the order in which they were sent. In a
// batch, that is the order of its lists.
struct Transfer {
    int peer;
    void *data;        // in the memory of the rank's device
    std::size_t bytes; // > 0; the same on both sides
};

// Returns the total bytes of messages that take `before` bytes and one more message of `bytes`. Messages follow one
// another at multiples of 256 bytes: copies of whole lines are faster.
constexpr std::size_t add_message(std::size_t before, std::size_t bytes) {
    constexpr std::size_t alignment = 256;
    return before + (bytes + alignment - 1) / alignment * alignment;
}

// Sends and receives that are begun and finished together. Their memory must stay until finish() on a CPU, and in the
// order of the stream on CUDA.
struct Batch {
    std::vector<Transfer> sends, receives;
    // Writes the messages to the data of `places`, or gives the stream the kernels that do. `places` are the sends. The
    // transport may have replaced the memory of some of them by its own, which saves a copy. If `write` is null, the
    // messages are already in the memory of the sends.
    std::function<void(const std::vector<Transfer> &places)> write = nullptr;

    bool empty() const { return sends.empty() && receives.empty(); }
    void write_sends() const {
        if (write)
            write(sends);
    }
};

// One rank's end. All functions throw Error. After a failure other than a bad argument the transport is broken: each
// call throws the first error again. One thread at a time uses it, except for abort() and failure().
class Transport {
  public:
    using Seconds = std::chrono::duration<double>;

    virtual ~Transport() = default;

    virtual int size() const = 0;
    virtual int rank() const = 0;

    // Throws unless contexts on this device can use the transport. `index` is the number of the device.
    virtual void check_device(annulus_device device, int index) const = 0;

    // True if devices copy from one another's memory. Then contexts must admit peers (DeviceStreams) beforehand.
    virtual bool copies_between_devices() const { return false; }

    virtual void set_timeout(Seconds timeout) = 0;

    // Collective. Gathers `bytes` of host memory from each rank into `all`, in rank order. Waits for all ranks.
    virtual void all_gather(const void *mine, void *all, std::size_t bytes) = 0;
    // True if all_gather() may be called now, which is not so while `stream` is being captured.
    virtual bool can_gather(Device &device, void *stream) const = 0;

    // Collective, where all_gather() may be called. Makes room for batches that send this number of bytes to each rank,
    // as add_message() counts them. Only a transport that such room makes faster does so.
    virtual void reserve(const std::vector<std::size_t> &) {}

    // Throws if no batch can be begun on `stream`. Some transports cannot begin one while the stream is being captured.
    virtual void check_stream(Device &, void *) const {}

    // Begins a batch, after the earlier work of `stream` (null on a CPU). Lets the batch write its messages once,
    // before anything on the stream waits for other ranks' messages. Work on the stream after finish() comes after the
    // batch. Several batches may be begun before the first one is finished; they are finished in the order of their
    // beginning. `batch` must live until then.
    virtual void begin(const Batch &batch, Device &device, void *stream) = 0;
    virtual void finish(const Batch &batch, Device &device, void *stream) = 0;

    // True if messages of a failed call may still read or write its memory, which must then stay allocated.
    virtual bool holds_memory() const { return false; }

    // Any thread may call it.
    virtual void abort() noexcept = 0;

    // Returns the error that broke the transport, as far as it is known, or none if it is not broken. Any thread may
    // call it; it does not wait.
    virtual std::optional<Error> failure() const = 0;
};

} // namespace annulus
