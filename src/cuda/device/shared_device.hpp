// SPDX-License-Identifier: Apache-2.0
// What the contexts of a device share: a pool of memory, and handles of cuBLAS of which each has some for itself as
// long as it lives.
#pragma once

#include "cuda/device/cuda_handle.hpp"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace annulus {

// Memory in the order of streams. It goes back to the system when the pool does, and when what was allocated is done
// with; destroying the pool does not wait for that.
class DevicePool {
  public:
    // Of the current device, which is number `index`.
    explicit DevicePool(int index);

    cudaMemPool_t get() const { return pool_.get(); }
    // Lets the other devices that have access copy from it directly. Any thread.
    void admit_peers();

  private:
    const int index_;
    Owned<cudaMemPool_t, cudaMemPoolDestroy> pool_;
    std::mutex admitting_;
    bool admits_peers_ = false;
};

// One for each device, from its first context to the end of the process. Any thread, with the device current.
class SharedDevice {
  public:
    static SharedDevice &of(int index);

    // That of the contexts there are, or a new one. Null where the device has no pools.
    std::shared_ptr<DevicePool> pool();

    cublasHandle_t take_blas();
    // Destroying a handle would wait for all work of the device, and at the end of the process CUDA may be gone: so
    // none ever is.
    void give_back(cublasHandle_t blas) noexcept;

  private:
    explicit SharedDevice(int index) : index_(index) {}

    const int index_;
    std::mutex mutex_;
    std::weak_ptr<DevicePool> pool_;
    std::vector<cublasHandle_t> idle_;
    std::size_t made_ = 0; // for as many there is room in idle_
};

} // namespace annulus
