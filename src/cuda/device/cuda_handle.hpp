// SPDX-License-Identifier: Apache-2.0
// What a thread needs to use CUDA next to other code: owned handles and memory, and scopes that restore its state.
#pragma once

#include "cuda/device/cuda_error.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <type_traits>

namespace annulus {

// Makes a device the thread's current one during the lifetime of the object.
class CurrentDevice {
  public:
    explicit CurrentDevice(int index) noexcept;
    ~CurrentDevice();
    CurrentDevice(const CurrentDevice &) = delete;
    CurrentDevice &operator=(const CurrentDevice &) = delete;

    cudaError_t error() const { return error_; }

  private:
    int previous_ = 0;
    bool has_changed_ = false;
    cudaError_t error_;
};

template <auto destroy> struct Destroy {
    template <class Handle> void operator()(Handle handle) const noexcept { destroy(handle); }
};
template <class Handle, auto destroy> using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<destroy>>;
using Event = Owned<cudaEvent_t, cudaEventDestroy>;
using Stream = Owned<cudaStream_t, cudaStreamDestroy>;
using DeviceBytes = Owned<std::byte *, cudaFree>;
using PinnedBytes = Owned<std::byte *, cudaFreeHost>;

inline Event make_event() {
    cudaEvent_t event;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return Event(event);
}

// Makes a stream of the current device with the highest priority.
inline Stream make_stream() {
    int lowest = 0, highest = 0;
    check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    cudaStream_t stream;
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest), "cudaStreamCreateWithPriority");
    return Stream(stream);
}

inline bool is_done(const Event &event) {
    const cudaError_t error = cudaEventQuery(event.get());
    if (error != cudaErrorNotReady)
        check(error, "cudaEventQuery");
    else
        cudaGetLastError(); // clears the error: later checks must not find it
    return error == cudaSuccess;
}

// As CurrentDevice, but throws if the device cannot be made current.
struct OnDevice : CurrentDevice {
    explicit OnDevice(int index) : CurrentDevice(index) { check(error(), "cudaSetDevice"); }
};

// Allows this thread to query events and to allocate memory while a stream is being captured, by this thread or
// another. Otherwise such calls would fail and invalidate the capture. They are not captured themselves.
class BesideCaptures {
  public:
    BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
    ~BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
    BesideCaptures(const BesideCaptures &) = delete;
    BesideCaptures &operator=(const BesideCaptures &) = delete;

  private:
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

} // namespace annulus
