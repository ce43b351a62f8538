// SPDX-License-Identifier: Apache-2.0
// The device interface: memory, streams, and the scope that makes a device current.
#pragma once

#include <annulus/context.h>

#include <cstddef>
#include <memory>

namespace annulus {

// The streams of a GPU. Every stream is a cudaStream_t and every event a cudaEvent_t.
class DeviceStreams {
  public:
    virtual ~DeviceStreams() = default;

    // Returns the stream on which messages are sent and received beside the call's own work.
    virtual void *comm_stream() = 0;
    // Records an event at the end of the work that `stream` has been given. Any thread may wait for the event until
    // 128 further events have been recorded.
    virtual void *record(void *stream) = 0;
    // Lets the further work of `stream` wait for `event`, which may belong to another device of the process.
    virtual void wait(void *stream, void *event) = 0;
    // Lets the other devices of the process copy directly from memory that Device::allocate() returns from now on.
    // Devices without a connection for it are left out.
    virtual void admit_peers() = 0;
    // Returns true while the stream is being captured into a graph.
    virtual bool is_capturing(void *stream) const = 0;
};

// One per context.
class Device {
  public:
    virtual ~Device() = default;

    // Allocates `bytes` > 0 of the device's memory, aligned to Workspace::alignment, for work on `stream`. Throws
    // Error(ANNULUS_ERROR_MEMORY).
    virtual void *allocate(std::size_t bytes, void *stream) = 0;
    // Gives memory of allocate() back once the work that `stream` has been given is done.
    virtual void release(void *memory, void *stream) noexcept = 0;

    // Throws Error(ANNULUS_ERROR_ARGUMENT) that names the argument if the device cannot reach `pointer`.
    virtual void check_memory(const char *name, const void *pointer) const = 0;

    // enter() makes the device the thread's current one; leave() restores the one before. They do not nest.
    virtual void enter() {}
    virtual void leave() noexcept {}

    // Returns the device's number among the devices of its kind.
    virtual int index() const { return 0; }

    // Copies from memory of any device of the same kind: on a CPU at once, on a GPU in the order of `stream`.
    virtual void copy(void *to, const void *from, std::size_t bytes, void *stream) = 0;

    // Returns null on a CPU, where a function's work is done when it returns.
    virtual DeviceStreams *streams() { return nullptr; }
};

// Makes a device current while a function of the C API works with it.
class DeviceScope {
  public:
    explicit DeviceScope(Device &device) : device_(device) { device.enter(); }
    ~DeviceScope() { device_.leave(); }
    DeviceScope(const DeviceScope &) = delete;
    DeviceScope &operator=(const DeviceScope &) = delete;

  private:
    Device &device_;
};

// Returns true while `stream` of a device is being captured into a graph.
bool is_capturing(Device &device, void *stream);

// Returns what messages call a device of the kind.
const char *device_name(annulus_device device);

} // namespace annulus
