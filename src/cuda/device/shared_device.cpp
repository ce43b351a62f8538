// SPDX-License-Identifier: Apache-2.0
#include "cuda/device/shared_device.hpp"

#include "cuda/device/cublas_library.hpp"
#include "cuda/device/cuda_error.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <utility>

namespace annulus {

DevicePool::DevicePool(const std::vector<int> &peers) {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    check(cudaGetDevice(&properties.location.id), "cudaGetDevice");
    cudaMemPool_t made;
    check(cudaMemPoolCreate(&made, &properties), "cudaMemPoolCreate");
    Owned<cudaMemPool_t, cudaMemPoolDestroy> pool(made); // owned until the pool is complete
    std::uint64_t threshold = UINT64_MAX;
    check(cudaMemPoolSetAttribute(made, cudaMemPoolAttrReleaseThreshold, &threshold), "cudaMemPoolSetAttribute");
    // Do not let one context's stream wait for another's just to reuse memory earlier.
    int allow = 0;
    check(cudaMemPoolSetAttribute(made, cudaMemPoolReuseAllowInternalDependencies, &allow), "cudaMemPoolSetAttribute");
    for (const int peer : peers) {
        cudaMemAccessDesc access{};
        access.location.type = cudaMemLocationTypeDevice;
        access.location.id = peer;
        access.flags = cudaMemAccessFlagsProtReadWrite;
        check(cudaMemPoolSetAccess(made, &access, 1), "cudaMemPoolSetAccess");
    }
    pool_ = pool.release();
}

void DevicePool::leave_stream(Event last) {
    forget_done();
    last_.push_back(std::move(last));
}

void DevicePool::leave(Event last) noexcept {
    try {
        leave_stream(std::move(last));
    } catch (const std::bad_alloc &) {
        return; // stays a user forever: it is unknown when that stream no longer uses the memory
    }
    --users_;
    forget_done();
    if (users_ == 0 && last_.empty())
        cudaMemPoolTrimTo(pool_, 0);
}

void DevicePool::forget_done() noexcept {
    const BesideCaptures beside_captures;
    std::erase_if(last_, [](const Event &event) { return cudaEventQuery(event.get()) == cudaSuccess; });
    cudaGetLastError(); // clears the error of an unfinished event: later checks must not find it
}

// Never destroyed: a context may be destroyed after the destructors of static objects have run.
SharedDevice &SharedDevice::of(int index) {
    static std::mutex &mutex = *new std::mutex;
    static auto &devices = *new std::map<int, std::unique_ptr<SharedDevice>>;
    const std::lock_guard lock(mutex);
    std::unique_ptr<SharedDevice> &device = devices[index];
    if (!device)
        device.reset(new SharedDevice(index));
    return *device;
}

std::vector<int> SharedDevice::peers() const {
    std::vector<int> peers;
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    for (int peer = 0; peer < count; ++peer) {
        int can = 0;
        if (peer != index_)
            check(cudaDeviceCanAccessPeer(&can, peer, index_), "cudaDeviceCanAccessPeer");
        if (can != 0)
            peers.push_back(peer);
    }
    return peers;
}

DevicePool *SharedDevice::enter_pool(bool for_peers) {
    const std::lock_guard lock(mutex_);
    int has_pools = 0;
    check(cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, index_), "cudaDeviceGetAttribute");
    if (has_pools == 0)
        return nullptr;
    std::optional<DevicePool> &pool = for_peers ? pool_of_peers_ : pool_;
    if (!pool)
        pool.emplace(for_peers ? peers() : std::vector<int>());
    pool->enter();
    return &*pool;
}

void SharedDevice::leave_stream(DevicePool &pool, Event last) {
    const std::lock_guard lock(mutex_);
    pool.leave_stream(std::move(last));
}

void SharedDevice::leave_pool(DevicePool &pool, Event last) noexcept {
    const std::lock_guard lock(mutex_);
    pool.leave(std::move(last));
}

void PoolUse::go_to(cudaStream_t stream) {
    if (stream == stream_)
        return;
    Event last = make_event();
    shared_.leave_stream(*pool_, std::exchange(last_, std::move(last)));
    stream_ = stream;
}

cublasHandle_t SharedDevice::take_blas(cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    idle_.reserve(made_count_ + 1); // give_back() must not fail
    const cublasHandle_t blas = idle_blas();
    const cublasStatus_t status = cublas().set_stream(blas, stream);
    if (status != CUBLAS_STATUS_SUCCESS)
        idle_.push_back({blas, {}});
    check(status, "cublasSetStream");
    return blas;
}

// Takes a handle out of idle_ if one is no longer in use. Otherwise makes one.
cublasHandle_t SharedDevice::idle_blas() {
    const BesideCaptures beside_captures;
    for (IdleBlas &idle : idle_) {
        if (idle.done && cudaEventQuery(idle.done.get()) != cudaSuccess) {
            cudaGetLastError(); // clears the error: later checks must not find it
            continue;
        }
        const cublasHandle_t blas = idle.blas;
        std::swap(idle, idle_.back());
        idle_.pop_back();
        return blas;
    }
    cublasHandle_t blas;
    check(cublas().create(&blas), "cublasCreate");
    // Keep sums in float32 if cuBLAS splits a product.
    constexpr int math = CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    const cublasStatus_t status = cublas().set_math_mode(blas, static_cast<cublasMath_t>(math));
    if (status != CUBLAS_STATUS_SUCCESS)
        cublas().destroy(blas);
    check(status, "cublasSetMathMode");
    ++made_count_;
    return blas;
}

void SharedDevice::give_back(cublasHandle_t blas, Event done) noexcept {
    const std::lock_guard lock(mutex_);
    idle_.push_back({blas, std::move(done)});
}

} // namespace annulus
