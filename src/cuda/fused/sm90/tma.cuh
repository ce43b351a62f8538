// SPDX-License-Identifier: Apache-2.0
// Copies into shared memory: by tensor maps (TMA), in bulk, and by threads (cp.async). A fence orders ordinary accesses
// and accesses of the async proxy.
#pragma once

#include "cuda/fused/sm90/mbarrier.cuh"

#include <cuda.h>

#include <cstdint>

namespace annulus {

// Copies the box of a five-dimensional tensor map at the given coordinates. One thread calls it. Elements outside the
// map's extents become zeros, and count among the bytes that the barrier expects.
__device__ __forceinline__ void tma_load(std::uint32_t target, const CUtensorMap &map, Mbarrier &barrier, int c0,
                                         int c1, int c2, int c3, int c4) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(target),
                 "l"(&map), "r"(shared_address(&barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
                 : "memory");
}

// Copy 16 bytes, or 4, or write zeros if they are not `present`.
__device__ __forceinline__ void cp_async_16(std::uint32_t target, const void *source, bool present) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(present ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void cp_async_4(std::uint32_t target, const void *source, bool present) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(present ? 4 : 0)
                 : "memory");
}
__device__ __forceinline__ void cp_async_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}
// End a group of copies, and wait until all groups but the last `pending` ones are done.
__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int pending> __device__ __forceinline__ void cp_async_wait_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Copies consecutive bytes from shared memory, as one group. Their number and both addresses are multiples of 16. One
// thread calls it. A thread waits until its groups have been read from shared memory, or until they have been written
// as well.
__device__ __forceinline__ void bulk_store(void *target, std::uint32_t source, unsigned bytes) {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(target),
        "r"(source), "r"(bytes)
        : "memory");
}
// Does the same, and adds float32 numbers to those in memory.
__device__ __forceinline__ void bulk_add(float *target, std::uint32_t source, unsigned bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(target),
                 "r"(source), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void bulk_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void bulk_store_wait() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
// Brings consecutive bytes into the L2 cache.
__device__ __forceinline__ void bulk_prefetch(const void *source, unsigned bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes) : "memory");
}

// Makes what this thread wrote to shared memory visible to wgmma and bulk copies that come after a barrier.
__device__ __forceinline__ void fence_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Does the same for global memory, too.
__device__ __forceinline__ void fence_async_proxies() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

} // namespace annulus
