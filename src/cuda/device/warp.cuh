// SPDX-License-Identifier: Apache-2.0
// Small things of warps and numbers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace annulus {

constexpr int warp_threads = 32, warpgroup_threads = 128;

// The thread's number in its block, which the compiler takes for another one each time it is asked for.
__device__ __forceinline__ int thread_of_block() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}
__device__ __forceinline__ int thread_of_warpgroup() {
    return thread_of_block() % warpgroup_threads;
}
__device__ __forceinline__ int warpgroup_of_thread() {
    return thread_of_block() / warpgroup_threads;
}

// Hands registers back to the block, and takes them: of every thread of a warpgroup, within what the block started
// with. More than that hangs.
template <int count> __device__ __forceinline__ void shrink_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count> __device__ __forceinline__ void grow_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// x, which is the same in all lanes, so that the compiler sees it. By the whole warp.
__device__ __forceinline__ int uniform(int x) {
    return __shfl_sync(~0u, x, 0);
}

// 2^x, results below the normal numbers are 0.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// log2(x) for normal numbers.
__device__ __forceinline__ float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two neighbours, rounded to nearest, `first` in the lower half.
template <class Element> __device__ __forceinline__ std::uint32_t pack_two(float first, float second);
template <> __device__ __forceinline__ std::uint32_t pack_two<__nv_bfloat16>(float first, float second) {
    std::uint32_t two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
    return two;
}
template <> __device__ __forceinline__ std::uint32_t pack_two<__half>(float first, float second) {
    std::uint32_t two;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
    return two;
}

template <class Element> __device__ __forceinline__ float2 unpack_two(std::uint32_t two);
template <> __device__ __forceinline__ float2 unpack_two<__nv_bfloat16>(std::uint32_t two) {
    return {__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000)};
}
template <> __device__ __forceinline__ float2 unpack_two<__half>(std::uint32_t two) {
    float2 x; // volatile: where it is written, or it would be done early for many at once, which takes registers
    asm volatile("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}\n"
                 : "=f"(x.x), "=f"(x.y)
                 : "r"(two));
    return x;
}

// Over the four lanes that hold a row of a product.
__device__ __forceinline__ float max_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float sum_of_row(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// a / b rounded up, for a >= 0 and b > 0 whose sum fits.
__device__ __forceinline__ int quotient_up(int a, int b) {
    return (a + b - 1) / b;
}

} // namespace annulus
