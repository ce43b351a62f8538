// SPDX-License-Identifier: Apache-2.0
// Copies into shared memory, and the order between ordinary accesses and those of the copy and matrix units.
#pragma once

#include "cuda/fused/sm90/mbarrier.cuh"

#include <cuda.h>

#include <cstdint>

namespace annulus {

// The box of a five-dimensional tensor map at the coordinates, by one thread. Elements outside the map's extents are
// zeros, and count among the bytes that the barrier expects.
__device__ __forceinline__ void copy_box(std::uint32_t target, const CUtensorMap &map, Mbarrier &barrier, int c0,
                                         int c1, int c2, int c3, int c4) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(target),
                 "l"(&map), "r"(shared_address(&barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
                 : "memory");
}

// 16 bytes, or as many zeros where there is nothing to be read.
__device__ __forceinline__ void copy_16_bytes(std::uint32_t target, const void *source, bool present) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(present ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void copy_4_bytes(std::uint32_t target, const void *source, bool present) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(present ? 4 : 0)
                 : "memory");
}
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// Bytes next to one another, a multiple of 16 at addresses that are, by one thread.
__device__ __forceinline__ void copy_bytes(std::uint32_t target, const void *source, unsigned bytes,
                                           Mbarrier &barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
        "l"(source), "r"(bytes), "r"(shared_address(&barrier))
        : "memory");
}
// The other way, in groups: a thread waits until its groups have been read from shared memory, or written as well.
__device__ __forceinline__ void store_bytes(void *target, std::uint32_t source, unsigned bytes) {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(target),
        "r"(source), "r"(bytes)
        : "memory");
}
__device__ __forceinline__ void wait_until_stores_were_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void wait_for_stores() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// What this thread wrote to shared memory is seen by matrix and bulk copy instructions that come after a barrier.
__device__ __forceinline__ void publish_to_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ uint4 load_16_bytes(std::uint32_t address) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
}
__device__ __forceinline__ float2 load_8_bytes(std::uint32_t address) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
    return x;
}
__device__ __forceinline__ void store_16_bytes(std::uint32_t address, const uint4 &x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

// Four 8 x 8 matrices of 16-bit elements; `address` is that of row lane % 8 of matrix lane / 8.
__device__ __forceinline__ void store_matrices(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                               std::uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

// Rows of 64 16-bit columns, 128 bytes, lie one after the other, those of further columns behind `rows` of them; the
// 16-byte parts of a row are permuted (the copy unit's 128-byte swizzle). Where part `part` of a row of columns begins.
constexpr int swizzled_row_bytes = 128;
__device__ __forceinline__ int swizzled_offset(int rows, int row, int part) {
    return (part >> 3) * rows * swizzled_row_bytes + row * swizzled_row_bytes + (((part & 7) ^ (row & 7)) << 4);
}

} // namespace annulus
