// SPDX-License-Identifier: Apache-2.0
// What the contexts of a device share: a memory pool, and cuBLAS handles. Each context has some of the handles for
// itself during its lifetime. Nothing of it is ever destroyed. Destroying a handle would wait for all work of the
// device. Destroying a pool with work in flight was seen to crash in the driver and to free memory that kernels still
// used. And at the end of the process CUDA may be gone.
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

// Memory that is allocated and freed in the order of streams. The pool keeps it for the next call. It gives the memory
// back when the pool has no users and all work on the streams that they used last is done.
class DevicePool {
  public:
    // Makes a pool on the current device. `peers`: devices that may copy from it directly, set before it is used.
    explicit DevicePool(const std::vector<int> &peers);

    cudaMemPool_t get() const { return pool_; }

    void enter() { ++users_; }
    // Notes that a user has used the pool's memory on a stream and may never use it there again. `last` was recorded
    // after that use.
    void leave_stream(Event last);
    // Removes a user. `last` was recorded after its last use, on the one stream that it has not left yet.
    void leave(Event last) noexcept;

  private:
    void forget_done() noexcept;

    cudaMemPool_t pool_;
    int users_ = 0;
    std::vector<Event> last_; // events of streams that users have left, as far as they may not be done yet
};

// One for each device, from its first context to the end of the process. Any thread may use it, with the device
// current.
class SharedDevice {
  public:
    static SharedDevice &of(int index);

    // Returns the pool, or the pool from which other devices may copy directly. Null if the device has no pools.
    DevicePool *enter_pool(bool for_peers);
    void leave_stream(DevicePool &pool, Event last);
    void leave_pool(DevicePool &pool, Event last) noexcept;

    // Returns a handle, bound to a stream, that no work in flight uses.
    cublasHandle_t take_blas(cudaStream_t stream);
    // `done` is an event after all work that used the handle.
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
    std::size_t made_count_ = 0; // number of handles made; idle_ has room for all of them
};

// Uses one of the device's pools during the lifetime of the object.
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

    // Null if the device has no pools.
    DevicePool *get() const { return pool_; }
    // Must be called before memory is allocated from the pool in the order of `stream`.
    void go_to(cudaStream_t stream);
    // The event to record after each use of the pool's memory, on the stream of the last go_to().
    cudaEvent_t last() const { return last_.get(); }

  private:
    SharedDevice &shared_;
    Event last_;
    cudaStream_t stream_ = nullptr;
    DevicePool *const pool_;
};

// Uses one of the device's cuBLAS handles during the lifetime of the object, bound to a stream.
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
