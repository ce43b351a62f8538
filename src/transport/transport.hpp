// SPDX-License-Identifier: Apache-2.0
// What ranks ask of a transport: host messages that all ranks see, and bytes from one rank's memory to another's.
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

// One end of a message between two ranks. Between two ranks messages arrive in the order in which they were sent, those
// of a batch in that of its lists.
struct Transfer {
    int peer;
    void *data;        // in the memory of the rank's device
    std::size_t bytes; // > 0; the same on both sides
};

// The bytes that messages take one behind the other, with one more of `bytes` behind those that take `before`: copies
// of whole lines are faster.
constexpr std::size_t add_message(std::size_t before, std::size_t bytes) {
    constexpr std::size_t alignment = 256;
    return before + (bytes + alignment - 1) / alignment * alignment;
}

// Sends and receives that belong together. Memory must stay until finish() on a CPU, and in the stream's order on CUDA.
struct Batch {
    std::vector<Transfer> sends, receives;
    // Writes the messages, or gives the stream what does, to the data of `places`: the sends, some of them perhaps with
    // memory of the transport's instead, which saves a copy. Where there is none, the sends' data have them already.
    std::function<void(const std::vector<Transfer> &places)> write = nullptr;

    bool empty() const { return sends.empty() && receives.empty(); }
    void write_sends() const {
        if (write)
            write(sends);
    }
};

// One rank's end. Everything throws Error, and after a failure other than a bad argument the transport is broken: each
// call throws the first error again. Used by one thread at a time, but for abort() and failure().
class Transport {
  public:
    using Seconds = std::chrono::duration<double>;

    virtual ~Transport() = default;

    virtual int size() const = 0;
    virtual int rank() const = 0;

    // Throws unless contexts on this device can use the transport; `index` is the device's number.
    virtual void check_device(annulus_device device, int index) const = 0;

    // Whether devices copy from one another's memory: then contexts admit peers (DeviceStreams) beforehand.
    virtual bool copies_between_devices() const { return false; }

    virtual void set_timeout(Seconds timeout) = 0;

    // Collective: `bytes` of host memory from each rank, in rank order into `all`. Waits for all ranks.
    virtual void all_gather(const void *mine, void *all, std::size_t bytes) = 0;
    // Whether all_gather() may be called now: not while `stream` is being captured.
    virtual bool can_gather(Device &device, void *stream) const = 0;

    // Collective, where all_gather() may be called: room is made for batches that send so many bytes to each rank, as
    // add_message() counts them, by a transport that is faster for it.
    virtual void reserve(const std::vector<std::size_t> &) {}

    // Throws where no batch can be begun on `stream`, as some transports cannot while it is being captured.
    virtual void check_stream(Device &, void *) const {}

    // Begins a batch, after what `stream` (null on a CPU) was given before, and has it written once, before anything on
    // the stream waits for what other ranks have yet to send; what follows on the stream after finish() comes after the
    // batch. Several batches may be begun before the first is finished, in the order of their beginning. `batch` must
    // live until then.
    virtual void begin(const Batch &batch, Device &device, void *stream) = 0;
    virtual void finish(const Batch &batch, Device &device, void *stream) = 0;

    // Whether messages of a call that failed may still read or write its memory, which must stay then.
    virtual bool holds_memory() const { return false; }

    // Any thread.
    virtual void abort() noexcept = 0;

    // The error with which the transport broke, as far as it is known; none where it is whole. Any thread, and it waits
    // for nobody.
    virtual std::optional<Error> failure() const = 0;
};

} // namespace annulus
