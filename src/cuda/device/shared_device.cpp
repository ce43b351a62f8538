// SPDX-License-Identifier: Apache-2.0
#include "cuda/device/shared_device.hpp"

#include "cuda/device/cuda_error.hpp"

#include <cstdint>
#include <map>

namespace annulus {

DevicePool::DevicePool(int index) : index_(index) {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = index;
    cudaMemPool_t pool;
    check(cudaMemPoolCreate(&pool, &properties), "cudaMemPoolCreate");
    pool_.reset(pool);
    // The next call wants the memory again: none goes back to the system before the pool does.
    std::uint64_t threshold = UINT64_MAX;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold), "cudaMemPoolSetAttribute");
    // One context's stream must not be made to wait for another's, only because its memory could be used again then.
    int allow = 0;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &allow), "cudaMemPoolSetAttribute");
}

// The driver copies between devices whatever cudaMalloc() returned, but from a pool directly only where it is mapped.
void DevicePool::admit_peers() {
    const std::lock_guard lock(admitting_);
    if (admits_peers_)
        return;
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    for (int peer = 0; peer < count; ++peer) {
        int can = 0;
        if (peer != index_)
            check(cudaDeviceCanAccessPeer(&can, peer, index_), "cudaDeviceCanAccessPeer");
        if (can == 0)
            continue;
        cudaMemAccessDesc access{};
        access.location.type = cudaMemLocationTypeDevice;
        access.location.id = peer;
        access.flags = cudaMemAccessFlagsProtReadWrite;
        check(cudaMemPoolSetAccess(pool_.get(), &access, 1), "cudaMemPoolSetAccess");
    }
    admits_peers_ = true;
}

// Never destroyed: a context may be, after the destructors of static objects have run.
SharedDevice &SharedDevice::of(int index) {
    static std::mutex &mutex = *new std::mutex;
    static auto &devices = *new std::map<int, std::unique_ptr<SharedDevice>>;
    const std::lock_guard lock(mutex);
    std::unique_ptr<SharedDevice> &device = devices[index];
    if (!device)
        device.reset(new SharedDevice(index));
    return *device;
}

std::shared_ptr<DevicePool> SharedDevice::pool() {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<DevicePool> pool = pool_.lock();
    if (pool)
        return pool;
    int has_pools = 0;
    check(cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, index_), "cudaDeviceGetAttribute");
    if (has_pools == 0)
        return nullptr;
    pool = std::make_shared<DevicePool>(index_);
    pool_ = pool;
    return pool;
}

cublasHandle_t SharedDevice::take_blas() {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
        const cublasHandle_t blas = idle_.back();
        idle_.pop_back();
        return blas;
    }
    idle_.reserve(made_ + 1); // give_back() must not fail
    cublasHandle_t blas;
    check(cublasCreate(&blas), "cublasCreate");
    ++made_;
    // Sums stay float32 where a product is split.
    constexpr int math = CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    const cublasStatus_t status = cublasSetMathMode(blas, static_cast<cublasMath_t>(math));
    if (status != CUBLAS_STATUS_SUCCESS) {
        cublasDestroy(blas);
        --made_;
    }
    check(status, "cublasSetMathMode");
    return blas;
}

void SharedDevice::give_back(cublasHandle_t blas) noexcept {
    const std::lock_guard lock(mutex_);
    idle_.push_back(blas);
}

} // namespace annulus
