// SPDX-License-Identifier: Apache-2.0
// What the contexts of a device share: a pool of memory, and handles of cuBLAS of which each has some for itself as
// long as it lives. None of it is ever destroyed: destroying a handle would wait for all work of the device, destroying
// a pool with work in flight has been seen to crash in the driver and to pull memory from under kernels, and at the end
// of the process CUDA may be gone.
#pragma once

#include "cuda/device/cuda_handle.hpp"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace annulus {

// Memory in the order of streams. It is kept for the next call until nobody has the pool any more and all work is done
// on the streams that its users had last.
class DevicePool {
  public:
    // Of the current device. `peers`: the devices that may copy from it directly, said before any of it is in use.
    explicit DevicePool(const std::vector<int> &peers);

    cudaMemPool_t get() const { return pool_; }

    void enter() { ++users_; }
    // Its memory has been used on a stream, by one who may never use it there again. `last`: recorded after that.
    void leave_stream(Event last);
    // `last`: as above, of the only stream not yet left by the one who leaves.
    void leave(Event last) noexcept;

  private:
    void forget_done() noexcept;

    cudaMemPool_t pool_;
    int users_ = 0;
    std::vector<Event> last_; // of streams that were left, as far as they may not have passed yet
};

// One for each device, from its first context to the end of the process. Any thread, with the device current.
class SharedDevice {
  public:
    static SharedDevice &of(int index);

    // The pool, or the one that other devices may copy from directly. Null where the device has none.
    DevicePool *enter_pool(bool for_peers);
    void leave_stream(DevicePool &pool, Event last);
    void leave_pool(DevicePool &pool, Event last) noexcept;

    // A handle bound to a stream, which no work in flight uses.
    cublasHandle_t take_blas(cudaStream_t stream);
    // `done`: the event after all that used it.
    void give_back(cublasHandle_t blas, Event done) noexcept;

  private:
    explicit SharedDevice(int index) : index_(index) {}
    std::vector<int> peers() const;
    cublasHandle_t idle_blas();

    struct IdleBlas {
        cublasHandle_t blas;
        Event done;
    };

    const int index_;
    std::mutex mutex_;
    std::optional<DevicePool> pool_, pool_of_peers_;
    std::vector<IdleBlas> idle_;
    std::size_t made_ = 0; // for as many there is room in idle_
};

// One of the device's pools as long as it lives.
class PoolUse {
  public:
    PoolUse(SharedDevice &shared, bool for_peers)
        : shared_(shared), last_(make_event()), pool_(shared.enter_pool(for_peers)) {}
    ~PoolUse() {
        if (pool_)
            shared_.leave_pool(*pool_, std::move(last_));
    }
    PoolUse(const PoolUse &) = delete;
    PoolUse &operator=(const PoolUse &) = delete;

    // Null where the device has none.
    DevicePool *get() const { return pool_; }
    // Before memory is taken from it in the order of a stream.
    void go_to(cudaStream_t stream);
    // To be recorded after each use of its memory, on the stream that it went to.
    cudaEvent_t last() const { return last_.get(); }

  private:
    SharedDevice &shared_;
    Event last_;
    cudaStream_t stream_ = nullptr;
    DevicePool *const pool_;
};

// A handle of the device's as long as it lives, bound to a stream.
class BlasUse {
  public:
    BlasUse(SharedDevice &shared, cudaStream_t stream)
        : shared_(shared), stream_(stream), done_(make_event()), blas_(shared.take_blas(stream)) {}
    ~BlasUse() {
        cudaEventRecord(done_.get(), stream_);
        shared_.give_back(blas_, std::move(done_));
    }
    BlasUse(const BlasUse &) = delete;
    BlasUse &operator=(const BlasUse &) = delete;

    cublasHandle_t get() const { return blas_; }

  private:
    SharedDevice &shared_;
    const cudaStream_t stream_;
    Event done_;
    const cublasHandle_t blas_;
};

} // namespace annulus
