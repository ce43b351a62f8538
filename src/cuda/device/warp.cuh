// SPDX-License-Identifier: Apache-2.0
// Threads, warps, warpgroups, and their barriers.
#pragma once

namespace annulus {

constexpr int warp_threads = 32, warpgroup_threads = 128;

// Returns the thread's number in its block. The asm volatile makes the compiler read it anew each time.
__device__ __forceinline__ int thread_of_block() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}
// The division is unsigned, so that it is a shift.
__device__ __forceinline__ int thread_of_warpgroup() {
    return static_cast<int>(static_cast<unsigned>(thread_of_block()) % warpgroup_threads);
}
__device__ __forceinline__ int warpgroup_of_thread() {
    return static_cast<int>(static_cast<unsigned>(thread_of_block()) / warpgroup_threads);
}

// Returns x, which must be the same in all lanes, so that the compiler knows that it is. Called by the whole warp.
__device__ __forceinline__ int uniform(int x) {
    return __shfl_sync(~0u, x, 0);
}

// Waits at the numbered barrier `id` of a block (0 is __syncthreads) until `threads` threads have arrived.
__device__ __forceinline__ void sync_threads(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive_threads(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Waits at the barrier of one consumer warpgroup, counted from 0.
__device__ __forceinline__ void sync_warpgroup(int consumer) {
    sync_threads(1 + consumer, warpgroup_threads);
}

// Reductions over all lanes, called by the whole warp. GPUs before compute capability 8.0 have no instruction for them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <class Combine> __device__ __forceinline__ int combine_lanes(int x, const Combine &combine) {
#pragma unroll
    for (int step = warp_threads / 2; step > 0; step /= 2)
        x = combine(x, __shfl_xor_sync(~0u, x, step));
    return x;
}
__device__ __forceinline__ int max_of_warp(int x) {
    return combine_lanes(x, [](int a, int b) { return max(a, b); });
}
__device__ __forceinline__ int min_of_warp(int x) {
    return combine_lanes(x, [](int a, int b) { return min(a, b); });
}
__device__ __forceinline__ int sum_of_warp(int x) {
    return combine_lanes(x, [](int a, int b) { return a + b; });
}
#else
__device__ __forceinline__ int max_of_warp(int x) {
    return __reduce_max_sync(~0u, x);
}
__device__ __forceinline__ int min_of_warp(int x) {
    return __reduce_min_sync(~0u, x);
}
__device__ __forceinline__ int sum_of_warp(int x) {
    return __reduce_add_sync(~0u, x);
}
#endif

// Returns a / b rounded up, for a >= 0 and b > 0 whose sum fits into int.
__device__ __forceinline__ int quotient_up(int a, int b) {
    return (a + b - 1) / b;
}

} // namespace annulus
