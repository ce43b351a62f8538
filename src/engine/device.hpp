// SPDX-License-Identifier: Apache-2.0
// What a context owes its engine of the device it stands on: memory, being the current one during a call, and on a GPU
// streams.
#pragma once

#include <annulus/context.h>

#include <cstddef>
#include <memory>

namespace annulus {

// The streams of a device whose work goes on while the host does something else. All are cudaStream_t, all events
// cudaEvent_t.
class DeviceStreams {
  public:
    virtual ~DeviceStreams() = default;

    // A stream for what is sent and received beside the call's own work.
    virtual void *comm_stream() = 0;
    // The end of what `stream` was given so far. Any thread may wait for it until 128 more have been recorded.
    virtual void *record(void *stream) = 0;
    // What `stream` is given after this comes after `event`, which may be of another device of the process.
    virtual void wait(void *stream, void *event) = 0;
    // Lets those other devices of the process that have access copy directly from what Device::allocate() returns after
    // this.
    virtual void admit_peers() = 0;
    // Whether the stream is being captured into a graph.
    virtual bool is_capturing(void *stream) const = 0;
};

// One per context.
class Device {
  public:
    virtual ~Device() = default;

    // `bytes` > 0 of the device's memory, aligned to Workspace::alignment and usable by work on `stream`. Throws
    // Error(ANNULUS_ERROR_MEMORY).
    virtual void *allocate(std::size_t bytes, void *stream) = 0;
    // Gives back what allocate() returned, once the work on `stream` is done with it.
    virtual void release(void *memory, void *stream) noexcept = 0;

    // Throws Error(ANNULUS_ERROR_ARGUMENT) naming the argument where the device cannot reach `pointer`.
    virtual void check_memory(const char *name, const void *pointer) const = 0;

    // Makes the device the thread's current one; restores the one that was. Scopes do not nest.
    virtual void enter() {}
    virtual void leave() noexcept {}

    // The device's number among those of its kind.
    virtual int index() const { return 0; }

    // From memory of any device of the same kind; on a CPU at once.
    virtual void copy(void *to, const void *from, std::size_t bytes, void *stream) = 0;

    // Null on a CPU: all is done when a function returns.
    virtual DeviceStreams *streams() { return nullptr; }
};

// Around everything that touches the device on behalf of a public call.
class DeviceScope {
  public:
    explicit DeviceScope(Device &device) : device_(device) { device.enter(); }
    ~DeviceScope() { device_.leave(); }
    DeviceScope(const DeviceScope &) = delete;
    DeviceScope &operator=(const DeviceScope &) = delete;

  private:
    Device &device_;
};

// Whether `stream` of a device is being captured into a graph.
bool is_capturing(Device &device, void *stream);

// How many devices of a kind this build can use on this machine.
int device_count(annulus_device device);

// Device `index`, which is below device_count(). Throws Error(ANNULUS_ERROR_UNSUPPORTED) with the reason where there is
// no device of the kind.
std::unique_ptr<Device> make_device(annulus_device device, int index);

// What the kinds of devices answer to these, defined in their rooms.
std::unique_ptr<Device> make_cpu_device();
int cuda_device_count();                             // only in the CUDA plugin
std::unique_ptr<Device> make_cuda_device(int index); // only in the CUDA plugin
const char *cuda_versions() noexcept;                // only in the CUDA plugin

// The version of CUDA that is in use, or "none". Static.
const char *cuda_description() noexcept;

// What messages call a device of the kind.
const char *device_name(annulus_device device);

} // namespace annulus
